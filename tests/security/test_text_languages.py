"""Texts of others in the languages that we write: each is quoted by one function, or refused by it.

| language | who quotes or refuses | here and elsewhere |
|---|---|---|
| shell | `shlex.quote`, `jobs.shell.quoted` | here; test_text_job_options.py, with each option of a job |
| ssh_config | `ssh.quoting` | tests/ssh/test_quoting.py, with the real ssh |
| YAML | the dumper of PyYAML | here |
| Jinja | `spec.document` and `configuration.runner.without_templates` refuse | here, with the real Ansible |
| HCL | JSON: Terraform takes values of variables and of a backend as they are | here, with the real Terraform |
| slurm.conf | the rule of `slurm.extra_config` refuses | here; test_text_judges.py, with Slurm's own parser |
| LDIF | `controller.users.ldif.line` | here; test_text_judges.py, with the real slapadd |
| units of systemd | `systems.units` | tests/ansible/test_unit_values.py, with the real systemd-analyze |
| HTML | `pages.markup` | here |
| a terminal | `text.terminal` | test_text_terminal.py |
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.configuration import runner
from gpucluster.configuration.runner import Ansible, without_templates, write_inventory
from gpucluster.controller.users import ldif
from gpucluster.errors import InputError
from gpucluster.jobs import shell
from gpucluster.pages import markup
from gpucluster.paths import ClusterPaths, ansible_dir
from gpucluster.spec import loads
from gpucluster.terraform.backends import BackendConfig
from tests.spec.spec_texts import LOCAL, MINIMAL
from tests.spec.test_every_field import fields, place
from tests.waiting import PATIENCE_S

#: `pwn` is made in the working directory if a program reads more than a text in one of these.
HOSTILE = (
    "x$(touch pwn)", "`touch pwn`", "a;touch pwn", "a|touch pwn", "a>pwn", "$HOME", "a b", "a'b", 'a"b', "a\\b", "a\\",
    "%h %%", "[ab]*?", "~root", "#a", "!a", "=a", "-a", "--help", "é", "'; touch pwn; '", '"; touch pwn; "', "${x}",
    "&a *a", "- a", "a: b", "!!python/object/apply:os.system [touch pwn]", "---", "...", "null", "yes", "012", "1e3",
    "<script>pwn()</script>", "\"><img src=x onerror=pwn()>", "' onload='pwn()", "</style>", "&lt;", ": a", " a ", "",
    "${file(\"/etc/passwd\")}", "%{ if true }x%{ endif }", "$${x}", "a\ndn: cn=admin", "a\n\ndn: cn=x", "a\r\nb",
)  # fmt: skip
TEMPLATES = ("{{ 7 * 7 }}", "{% raw %}", "{# x #}", "{{ lookup('pipe', 'touch pwn') }}", "x{{x", "a\n{{ b }}")


@pytest.mark.parametrize("text", HOSTILE)
def test_shell(text: str, tmp_path: Path) -> None:
    for line in (f"value={shell.quoted(text)}", f"value={shlex.quote(text)}"):
        script = f'{line}\nprintf %s "$value"\n'
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=True)
        assert done.stdout.decode() == text
    assert not (tmp_path / "pwn").exists()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_yaml_of_an_inventory(text: str) -> None:
    if "{{" in text or "{%" in text or "{#" in text:
        return
    value = {"all": {"vars": {"a": text, "b": [text], "c": {"d": text}}}}
    assert yaml.safe_load(yaml.safe_dump(without_templates(value), sort_keys=False)) == value


@pytest.mark.parametrize("text", HOSTILE)
def test_an_inventory_has_the_text(text: str, tmp_path: Path) -> None:
    written = write_inventory(ClusterPaths(tmp_path), {"all": {"vars": {"a": text}}})
    assert yaml.safe_load(written.read_text()) == {"all": {"vars": {"a": text}}}


@pytest.mark.parametrize("text", TEMPLATES)
@pytest.mark.parametrize("shape", ["value", "inner", "key"])
def test_a_template_is_refused(text: str, shape: str, tmp_path: Path) -> None:
    values: dict[str, dict[str, Any]] = {
        "value": {"a": text}, "inner": {"a": [{"b": (text,)}]}, "key": {text: 1}
    }  # fmt: skip
    with pytest.raises(InputError, match="as a template"):
        write_inventory(ClusterPaths(tmp_path), values[shape])
    assert not (tmp_path / "ansible").exists()


def test_ansible_takes_each_text_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As variables of the inventory and of the run, with the real Ansible."""
    folder = tmp_path / "ansible"
    folder.mkdir()
    shutil.copy(ansible_dir() / "ansible.cfg", folder)
    monkeypatch.setattr(runner, "ansible_dir", lambda: folder)
    (folder / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - set_fact: {gpucluster_a: '{{ of_inventory }}', gpucluster_b: '{{ of_run }}'}\n"
    )
    paths = ClusterPaths(tmp_path / "site")
    paths.create()
    texts = list(HOSTILE)
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "of_inventory": texts}
    inventory = write_inventory(paths, {"all": {"hosts": {"here": here}}})
    done = Ansible(paths, tmp_path / "ssh", {}, lambda _: None).run(
        "site.yml", inventory, run_id="test", variables={"of_run": texts}
    )
    assert done.facts["here"]["gpucluster_a"] == texts
    assert done.facts["here"]["gpucluster_b"] == texts
    assert not [*tmp_path.rglob("pwn")]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% raw %}"])
def test_no_field_of_cluster_yml_is_a_template(text: str) -> None:
    accepted = set()
    base = yaml.safe_load(LOCAL)
    for path, name, _ in fields():
        for value in (text, [text], {"k": text}):
            document = json.loads(json.dumps(base))
            place(document, path, name, value)
            try:
                loads(json.dumps(document))
            except InputError:
                continue
            accepted.add(".".join([*path, name]))
    assert accepted == set()


@pytest.mark.parametrize("text", [*HOSTILE, *TEMPLATES])
def test_slurm_conf(text: str) -> None:
    """A value is one line without a comment, or it is refused."""
    try:
        spec = loads(f"{MINIMAL}slurm: {{extra_config: {{Licenses: {json.dumps(text)}}}}}\n")
    except InputError:
        return
    line = f"Licenses={spec.slurm.extra_config['Licenses']}"
    assert line.splitlines() == [line]
    assert not {"#", "\\", "\n", "\r"} & set(line)


@pytest.mark.parametrize("text", [*HOSTILE, *TEMPLATES])
def test_ldif(text: str) -> None:
    record = ldif.add("uid=a,dc=demo", [("cn", text), ("sn", "last")])
    assert not [line for line in record.splitlines() if line.startswith("dn: cn=")]
    (entry,) = ldif.parse(record)
    assert entry["cn"] == [text]
    assert entry["sn"] == ["last"]
    assert entry["dn"] == ["uid=a,dc=demo"]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", [*HOSTILE, *TEMPLATES])
def test_html(text: str) -> None:
    page = _Page()
    page.feed(str(markup.element("p", text, title=text)))
    assert page.tags == [("p", ["title"])]
    assert page.text.replace("\\n", "\n").replace("\\r", "\r") == text


def test_terraform_takes_a_path_as_it_is(tmp_path: Path) -> None:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("terraform is not installed")
    for number, name in enumerate(("a${1 + 1}", "b%{ if true }x%{ endif }", 'c$$ d%% "e', "é $(touch pwn)")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "backend.tf.json").write_text(BackendConfig("local", {"path": f"{name}.tfstate"}).text())
        (folder / "main.tf").write_text('output "a" { value = 1 }\n')
        for words in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
            done = subprocess.run([program, *words], cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / f"{name}.tfstate").exists()
