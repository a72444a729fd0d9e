"""What our rules accept, put before the programs that read it: slapadd, useradd, groupadd and Slurm itself.

Full names, comments of keys and values of slurm.conf are from a list of texts in many scripts, with each sign that any
of the languages knows, alone and within a word. Names are the shortest and the longest, words that a program has for
itself, and names of our own hosts. What our rules refuse is left out; a program that refuses one of the rest shows a
rule that is too weak. (Terraform is asked in tests/terraform/test_tf_variables.py.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpucluster import handover, shapes
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.cloud.members import PoolMember
from gpucluster.controller.rules import names as name_rules
from gpucluster.controller.users import ldif
from gpucluster.controller.users.state import CLASSES, DirectoryUser
from gpucluster.errors import InputError
from gpucluster.handover.names import permanent_names
from gpucluster.slurm import config_keys
from gpucluster.spec import ClusterSpec, loads
from gpucluster.spec.sections.users import UserSpec
from tests.ansible import render as role
from tests.ansible.in_container import Host, host
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, FILES, in_container, pool, render
from tests.controller.users.in_container import CONFIG
from tests.security.test_text_languages import HOSTILE, TEMPLATES
from tests.spec.spec_texts import MINIMAL
from tests.waiting import PATIENCE_S

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
#: Words of Slurm, of Ansible and of our own, the bounds of the rules, and names that look like a node's.
NAMES = (
    *("all", "default", "none", "unlimited", "infinite", "null", "unknown", "any", "inf", "nan", "true", "no", "up"),
    *("down", "drain", "idle", "future", "cloud", "force", "exclusive", "include", "nodename", "partitionname", "root"),
    *("ungrouped", "hostvars", "controller", "login", "localhost", "compute", "pool", "builder", "demo", "e1", "bake"),
    *("demo-controller", "demo-login", "a", "z9", "a--9", "a" * 20, "a" + "-" * 18 + "z"),
)
#: The same for users and groups, which may have more signs.
USER_NAMES = (*NAMES, "_", "_-", "a_", "a-", "_0", "users-", "where", "set", "name", "a" * 32, "_" * 32, "a" + "-" * 31)

pytestmark = [pytest.mark.slow]

#: For a thousand programs, one after the other.
MANY_S = 4 * PATIENCE_S


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
    users: list[tuple[str, UserSpec]] = []
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
        user = DirectoryUser(
            person.name, 10_000 + number, 9999, full_name, f"/home/{person.name}", "/bin/bash", person.ssh_keys
        )
        own = [("uid", user.name), ("uidNumber", str(user.uid))]
        rest = [(key, value) for key, values in user.attributes().items() for value in values]
        record = ldif.add(
            f"uid={user.name},ou=people,dc=demo", [*(("objectClass", each) for each in CLASSES), *own, *rest]
        )
        records.append(record.replace("changetype: add\n", ""))
    assert _slapadd(here, records) == ""
    # It does refuse what is none of these.
    assert "(65)" in _slapadd(here, [records[0], "dn: uid=a,dc=demo\nobjectClass: posixAccount\nuid: a\ncn: \n"])


def _slapadd(node: Host, records: Iterable[str]) -> str:
    """What slapadd reports of these records in an empty directory; nothing if it takes them all."""
    config = CONFIG.replace("SUFFIX", "dc=demo").replace("MODULES", "moduleload argon2")
    _write(
        node, "/tmp/slapd.conf", "\n".join(line for line in config.splitlines() if not line.startswith("TLS")) + "\n"
    )
    node.run("mkdir", "-p", "/var/lib/ldap/test")
    _write(node, "/tmp/users.ldif", "\n".join(records))
    return node.run("slapadd", "-u", "-c", "-f", "/tmp/slapd.conf", "-l", "/tmp/users.ldif", check=False)[:3000]


def _user_names() -> list[str]:
    """Of USER_NAMES those that a user, the group of all users and a group of some may have."""
    person = f"full_name: Ada Lovelace, ssh_public_keys: ['{KEY}']"
    return [
        name
        for name in USER_NAMES
        if _spec(f"users: {{people: [{{name: '{name}', {person}}}]}}\n")
        and _spec(f"users: {{group: '{name}', people: [{{name: ada, {person}, groups: ['{name}']}}]}}\n")
    ]


def test_slapadd_takes_each_name_of_users_and_groups(here: Host) -> None:
    names = _user_names()
    assert {"a", "_", "a" * 32, "unlimited"} <= set(names)
    records = ["dn: dc=demo\nobjectClass: domain\ndc: demo\n"]
    records += [f"dn: ou={unit},dc=demo\nobjectClass: organizationalUnit\n" for unit in ("people", "groups")]
    for number, name in enumerate(names, start=10_000):
        user = DirectoryUser(name, number, 9999, name, f"/home/{name}", "/bin/bash", (KEY,))
        own = [*(("objectClass", each) for each in CLASSES), ("uid", name), ("uidNumber", str(number))]
        rest = [(key, value) for key, values in user.attributes().items() for value in values]
        group = [("objectClass", "posixGroup"), ("cn", name), ("gidNumber", str(number)), ("memberUid", name)]
        for dn, attributes in (
            (f"uid={name},ou=people,dc=demo", [*own, *rest]),
            (f"cn={name},ou=groups,dc=demo", group),
        ):
            records.append(ldif.add(dn, attributes).replace("changetype: add\n", ""))
    assert _slapadd(here, records) == ""


def test_a_host_takes_each_name_of_users_and_groups(here: Host) -> None:
    """Without a home share users are accounts of each host. No name is that of an account which is there already."""
    present = here.run("cut", "-d:", "-f1", "/etc/passwd", "/etc/group").split()
    assert [name for name in present if not name_rules.is_reserved_name(name)] == []
    # Both are made and removed again; SSSD, which is told of it, is not configured here.
    script = (
        'for name; do { groupadd "$name" && useradd --gid="$name" --no-create-home "$name" && userdel "$name"; } '
        '>/dev/null 2>&1 || echo "$name"; done'
    )
    bounds = [name for name in _user_names() if name not in NAMES]
    assert here.run("sh", "-c", script, "sh", *bounds, "a:b", check=False).split() == ["a:b"]


# --- slurm.conf, with Slurm's own parser -----

#: Reads pairs of a text and a slurm.conf; writes what Slurm reported of each that it refuses or reads differently.
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
    assert json.loads(here.run("python3", "-c", _JUDGE, patience=MANY_S)) == []


#: Writes a slurm.conf with every word of Slurm's library as a key; prints those that its parser knows.
_KEYS = r"""
import glob, json, re, subprocess, sys
(library,) = glob.glob("/usr/lib/*/slurm*/libslurmfull.so")
with open(library, "rb") as file:
    words = re.findall(rb"(?<=\0)[A-Z]\w+(?=\0)", file.read())
words = sorted({word.decode() for word in words if not word.isupper()} | set(json.loads(sys.argv[1])))
# Those of what every file has, and one that ends the program.
apart = {"clustername", "frontendname", "include", "nodename", "partitionname", "slurmctldhost"}
lines = ["ClusterName=a", "SlurmctldHost=a", "NodeName=a", "PartitionName=a Nodes=a"]
lines += [f"{word}=1" for word in words if word.lower() not in apart]
with open("/etc/slurm/slurm.conf", "w") as file:
    file.write("\n".join(lines) + "\n")
done = subprocess.run(["scontrol", "show", "hostlist", "a,b"], capture_output=True, text=True)
refused = re.findall(r"unrecognized key: (\w+)", done.stderr)
print(json.dumps([word for word in words if word not in refused and word.lower() not in apart]))
"""


def test_the_known_keys_of_slurm_conf_are_those_of_its_parser(here: Host) -> None:
    here.run("mkdir", "-p", "/etc/slurm")
    known = json.loads(here.run("python3", "-c", _KEYS, json.dumps(sorted(config_keys.KNOWN))))
    apart = {"clustername", "frontendname", "nodename", "partitionname", "slurmctldhost"}
    assert {key.casefold() for key in known} | apart == {
        key.casefold() for key in (*config_keys.OF_24_11, "FrontendName")
    }


#: Asks the parser for each key with each value: which it takes.
_TAKEN = r"""
import json, subprocess, sys
keys, values = json.loads(sys.argv[1])
taken = {}
for key in keys:
    for value in values:
        with open("/etc/slurm/slurm.conf", "w") as file:
            print("ClusterName=a", "SlurmctldHost=a", "NodeName=a", "PartitionName=a Nodes=a", sep="\n", file=file)
            print(key, value, sep="=", file=file)
        done = subprocess.run(["scontrol", "show", "hostlist", "a,b"], capture_output=True, text=True)
        of_its_kind = ("not a valid number", "is not a valid option", "than zero", "is greater than")
        if not any(words in done.stderr for words in of_its_kind):
            taken.setdefault(key, []).append(value)
print(json.dumps(taken))
"""


def test_a_value_that_the_parser_does_not_take_is_refused_and_no_other(here: Host) -> None:
    """Of all keys: one that is missing in our tables would be seen here, too."""
    here.run("mkdir", "-p", "/etc/slurm")
    apart = {"ClusterName", "DownNodes", "FrontendName", "NodeName", "NodeSet", "PartitionName", "SlurmctldHost"}
    # Keys that do not exist any more; what the parser reports of their values is not the reason why it refuses them.
    removed = {"AccountingStoreJobComment", "ExtSensorsFreq"}
    # It has a limit of its own beside that of its type.
    limited = {"MaxArraySize"}
    keys = sorted(config_keys.OF_24_11 - apart - removed - limited)
    values = ["word", "-1", "1.5", "7", "yes", "Down", "INFINITE", "65535", "65536", "4294967296", "0x10"]
    taken = json.loads(here.run("python3", "-c", _TAKEN, json.dumps([keys, values]), patience=MANY_S))
    ours = {key: [value for value in values if not config_keys.refused(key, value)] for key in keys}
    assert {key: taken[key] for key in keys if taken[key] != ours[key]} == {}


def _cluster(pools: Iterable[str], more: str = "") -> ClusterSpec | None:
    """A cluster with these pools, each with permanent and elastic nodes; None if the rules refuse it."""
    machine = "{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 1, max_count: 3}"
    listed = ", ".join(f"{json.dumps(name)}: {machine}" for name in pools)
    text = MINIMAL.replace("name: tiny", "name: demo").partition("pools:")[0]
    try:
        return loads(f"{text}pools: {{{listed}}}\n{more}")
    except InputError:
        return None


def _slurm_files(spec: ClusterSpec, nodes: dict[str, list[PoolMember]]) -> dict[str, str]:
    outputs = json.loads((Path(__file__).parents[1] / "golden" / "local_demo" / "outputs.json").read_text())
    inventory = handover.inventory(
        spec,
        handover.Outputs.parse(outputs),
        nodes,
        person_keys={},
        operator_keys=(),
        hardware_emulated=True,
        autoscaling=None,
        software=ReleaseSet(None, ()),
    )["all"]["vars"]
    inventory |= {"gpucluster_hosts": [{"name": CONTROLLER, "address": ADDRESS}]}
    inventory |= {"slurm_accounting": False, "health_enabled": False}
    known = role.variables(inventory, role="slurm", facts=role.host_facts())
    return {name: role.render("slurm", name, known) for name in FILES}


def test_slurm_takes_each_name_of_pools_partitions_and_nodes() -> None:
    """slurmctld comes up with them, and in each of its programs a name means one partition, its nodes, and no more."""
    names = [name for name in NAMES if _cluster([name])]
    assert {"none", "unlimited", "login", "a" * 20} <= set(names)
    longest = "a" + "_-" * 19 + "_"
    spec = _cluster(names, f"slurm: {{cluster_name: '{longest}'}}\n")
    assert spec is not None
    nodes = {
        name: [PoolMember(name=node, id="ocid1.instance.test..a", private_ip=ADDRESS, public_ip="") for node in listed]
        for name, listed in ((name, permanent_names(name, pool)) for name, pool in spec.pools.items())
    }
    questions = [["scontrol", "show", "config"]]
    for name in names:
        job = [f"--partition={name}", f"--constraint={name}", f"--nodelist={name}-1", "--hold", "--chdir=/tmp"]
        questions += [
            ["scontrol", "--oneliner", "show", "partition", name],
            ["runuser", "-u", "daemon", "--", "sbatch", *job, "--wrap=true"],
            ["squeue", "--noheader", f"--partition={name}", "--format=%P %n"],
            ["sinfo", "--noheader", "--Node", f"--partition={name}", "--format=%R %N"],
        ]
    hosts = {CONTROLLER: ADDRESS} | {node.name: ADDRESS for listed in nodes.values() for node in listed}
    plan = {"controller": ADDRESS, "hosts": hosts, "nodes": [], "devices": [], "emulated_files": []}
    (_, config), *answers = in_container({**plan, "files": _slurm_files(spec, nodes), "questions": questions})[
        "answers"
    ]
    assert f"ClusterName             = {longest}\n" in config
    for name in names:
        said, answers = [text for _, text in answers[:4]], answers[4:]
        assert said[0].startswith(f"PartitionName={name} "), (name, said)
        assert said[0].count("PartitionName=") == 1, (name, said)
        assert said[1].startswith("Submitted batch job"), (name, said)
        assert said[2].split() == [name, f"{name}-1"], (name, said)
        assert all(re.fullmatch(rf"{name} {name}-(1|e[0-9]+)", line.strip()) for line in said[3].splitlines()), said
        assert len(said[3].splitlines()) > 1, (name, said)
