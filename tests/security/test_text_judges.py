"""What our rules accept, put before the programs that read it: slapadd and Slurm's own parser.

Full names, comments of keys and values of slurm.conf are from a list of texts in many scripts, with each sign that any
of the languages knows, alone and within a word. What our rules refuse is left out; a program that refuses one of the
rest shows a rule that is too weak.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpucluster import shapes
from gpucluster.agent.users import ldif
from gpucluster.agent.users.state import CLASSES, User
from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, loads
from gpucluster.spec.sections.users import Person
from tests.agent.users.in_container import CONFIG
from tests.ansible.in_container import Host, host
from tests.ansible.slurm_render import pool, render
from tests.security.test_text_languages import HOSTILE, TEMPLATES
from tests.spec.spec_texts import MINIMAL

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEyPRgdKfBYsUDcnNbEvlN7FAqYP6JWkIFdGvC4bqYqN"
#: Accents, composed and combining, right to left, wide signs, joiners, beyond the first plane, and odd blanks.
SCRIPTS = (
    "Zoë", "Zoe\u0308 Müller", "O'Brien \"Ann\"", "山田 太郎", "محمد", "דוד", "नमस्ते",
    "\u0646\u200c\u062e", "a\u0301\u0301\u0301b",
    "\u0301a", "\U0001d49cda", "👩\u200d💻 a", "İstanbul", "ß ẞ", "ﬁ",
    "Ⅷ a", "a\u00a0b", "a\u2028b", "a\u0085b", "a\x0bb", "a\x00b",
    "a\tb", "a\x1bb", "a\x7fb", "\ufeffa", "a\u202eb", "\ud7ffa", "ǅ", "ª", "a\u3000b", "a\u00adb",
)  # fmt: skip
SIGNS = tuple(pattern.replace("x", chr(code)) for code in range(32, 127) for pattern in ("x", "axb", "ax", "xa", "xax"))
TEXTS = tuple(dict.fromkeys((*HOSTILE, *TEMPLATES, *SCRIPTS, *SIGNS, "a" * 100, "é" * 100)))

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def here() -> Iterator[Host]:
    """A container with slapadd and Slurm."""
    with host() as node:
        yield node


def _spec(more: str) -> ClusterSpec | None:
    try:
        return loads(MINIMAL + more)
    except InputError:
        return None


def _write(node: Host, path: str, text: str) -> None:
    """In parts: a word of a command line has 128 KiB at most."""
    node.run("sh", "-c", ': > "$0"', path)
    for start in range(0, len(text), 20_000):
        node.run("sh", "-c", 'printf %s "$1" >> "$0"', path, text[start : start + 20_000])


# --- LDIF, with slapadd -----


def test_slapadd_takes_each_user_that_cluster_yml_can_have(here: Host) -> None:
    users: list[tuple[str, Person]] = []
    for text in TEXTS:
        for member in ("full_name", "comment"):
            entry = {"name": f"u{len(users)}", "ssh_public_keys": [KEY], "full_name": ""}
            entry |= {"ssh_public_keys": [f"{KEY} {text}"]} if member == "comment" else {"full_name": text}
            spec = _spec(f"users: {{people: [{json.dumps(entry)}]}}\n")
            if spec is not None:
                users.append((text, spec.users.people[0]))
    assert len(users) > len(SCRIPTS)
    records = [
        "dn: dc=demo\nobjectClass: domain\ndc: demo\n",
        "dn: ou=people,dc=demo\nobjectClass: organizationalUnit\n",
    ]
    for number, (_, person) in enumerate(users):
        full_name = person.full_name.strip() or person.name
        user = User(person.name, 10_000 + number, 9999, full_name, f"/home/{person.name}", "/bin/bash", person.ssh_keys)
        own = [("uid", user.name), ("uidNumber", str(user.uid))]
        rest = [(key, value) for key, values in user.attributes().items() for value in values]
        record = ldif.add(
            f"uid={user.name},ou=people,dc=demo", [*(("objectClass", each) for each in CLASSES), *own, *rest]
        )
        records.append(record.replace("changetype: add\n", ""))
    config = CONFIG.replace("SUFFIX", "dc=demo").replace("MODULES", "moduleload argon2")
    _write(
        here, "/tmp/slapd.conf", "\n".join(line for line in config.splitlines() if not line.startswith("TLS")) + "\n"
    )
    here.run("mkdir", "-p", "/var/lib/ldap/test")
    _write(here, "/tmp/users.ldif", "\n".join(records))
    said = here.run("slapadd", "-u", "-c", "-f", "/tmp/slapd.conf", "-l", "/tmp/users.ldif", check=False)
    assert said == "", said[:3000]
    # It does refuse what is none of these.
    _write(here, "/tmp/users.ldif", records[0] + "\ndn: uid=a,dc=demo\nobjectClass: posixAccount\nuid: a\ncn: \n")
    assert "(65)" in here.run("slapadd", "-u", "-f", "/tmp/slapd.conf", "-l", "/tmp/users.ldif", check=False)


# --- slurm.conf, with Slurm's own parser -----

#: Reads pairs of a text and a slurm.conf; writes what Slurm said of each that it refuses or reads differently.
_JUDGE = """
import json, subprocess, sys
refused = []
for text, conf in json.load(open("/tmp/cases.json")):
    with open("/etc/slurm/slurm.conf", "w") as file:
        file.write(conf)
    done = subprocess.run(["scontrol", "show", "hostlist", "a,b"], capture_output=True, text=True)
    if done.returncode or done.stderr or "SlurmUser=root" in conf or done.stdout != "a,b\\n":
        refused.append([text, done.stderr[-300:]])
print(json.dumps(refused))
"""


def test_slurm_takes_each_value_that_cluster_yml_can_have(here: Host) -> None:
    shape = shapes.catalogue()["VM.Standard.E5.Flex"]
    files = render(
        [pool(shape, ["c-1"], name="c")], emulated=True, checks=False, extra_config={"Licenses": "THE-VALUE"}
    )
    cases = []
    for text in (*TEXTS, *(f'"{text}"' for text in TEXTS), "a SlurmUser=root", '"a" SlurmUser="root"'):
        spec = _spec(f"slurm: {{extra_config: {{Licenses: {json.dumps(text)}}}}}\n")
        if spec is not None:
            value = str(spec.slurm.extra_config["Licenses"])
            cases.append((text, files["slurm.conf"].replace("THE-VALUE", value)))
    assert len(cases) > len(SCRIPTS)
    here.run("mkdir", "-p", "/etc/slurm")
    for name, text in files.items():
        _write(here, f"/etc/slurm/{name}", text)
    _write(here, "/tmp/cases.json", json.dumps(cases))
    assert json.loads(here.run("python3", "-c", _JUDGE)) == []
