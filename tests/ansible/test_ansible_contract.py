"""Rules for the whole ansible folder, read as files: no host is needed."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader

from ansible import module_utils
from tests.ansible.loading import ANSIBLE, PLAYBOOKS, ROLES, load, read, tasks_of
from tests.ansible.render import INVENTORY

TASK_FILES = sorted(ANSIBLE.glob("roles/*/tasks/*.yml")) + sorted(ANSIBLE.glob("roles/*/handlers/*.yml"))
ALL_TASKS = [(file, task) for file in TASK_FILES for task in tasks_of(read(file))] + [
    (ANSIBLE / name, task) for name in PLAYBOOKS for task in tasks_of(read(name))
]


def options(role: str) -> dict[str, Any]:
    found: dict[str, Any] = read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return found


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_those_of_the_argument_specs(role: str) -> None:
    file = ANSIBLE / "roles" / role / "defaults" / "main.yml"
    defaults = read(file) if file.exists() else {}
    specified = {name: option["default"] for name, option in options(role).items() if "default" in option}
    assert defaults == specified


@pytest.mark.parametrize("role", ROLES)
def test_own_variables_bear_the_role_s_name(role: str) -> None:
    file = ANSIBLE / "roles" / role / "vars" / "main.yml"
    names = set(options(role)) | set(read(file) if file.exists() else {})
    assert [name for name in names if not name.startswith(f"{role}_")] == []


def test_every_variable_of_the_inventory_is_described_once() -> None:
    shared = read("vars/inventory_options.yml")["inventory_options"]
    described = [*shared, *(name for role in ROLES for name in options(role))]
    assert [name for name in set(described) if described.count(name) > 1] == []
    assert set(INVENTORY) <= set(described)
    with_default = {name for role in ROLES for name, option in options(role).items() if "default" in option}
    assert set(described) - with_default <= set(INVENTORY)
    assert [name for name, option in shared.items() if not {"description", "type"} <= set(option)] == []


def test_the_readme_lists_the_roles() -> None:
    file = ANSIBLE / "README.md"
    lines = ["| role | what it is for |", "|---|---|"]
    for role in ROLES:
        summary = read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["short_description"]
        lines.append(f"| [`{role}`](roles/{role}/meta/argument_specs.yml) | {summary} |")
    table = "\n".join(["<!-- roles -->", *lines, "<!-- end -->"])
    expected = re.sub(r"<!-- roles -->.*<!-- end -->", lambda _match: table, file.read_text(), flags=re.DOTALL)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(expected)
    assert file.read_text() == expected, "the table is old: UPDATE_GOLDEN=1 writes it again"


def named_in_loops(task: dict[str, Any]) -> set[str]:
    """The roles that a task includes one after the other."""
    words = str(task["loop"]).replace("select('in'", "")
    return set(re.findall(r"'([a-z_]+)'", words)) if task.get("ansible.builtin.include_role") else set()


def test_roles_that_are_named_exist_and_state_when_they_have_work() -> None:
    loops = [named_in_loops(task) for _file, task in ALL_TASKS if "loop" in task]
    named = set(read("group_vars/all/cluster.yml")["node_software"]).union(*loops)
    assert named >= {"ldap", "slurm", "docker"}
    assert named <= set(ROLES)
    assert named <= set(read("group_vars/all/cluster.yml")["role_has_work"]) <= set(ROLES)


def test_no_play_has_files_of_variables() -> None:
    # Ansible parses them again for each task of each host; group_vars/all is read once.
    assert [play["name"] for name in PLAYBOOKS for play in read(name) if "vars_files" in play] == []


def test_templates_are_not_evaluated_with_a_copy_of_all_variables() -> None:
    # Ansible's own lookup copies them deeply, each time: a third of the operator's processor time.
    files = [file for file in ANSIBLE.rglob("*") if file.suffix in (".yml", ".j2")]
    assert [file.name for file in files if "'ansible.builtin.template'" in file.read_text()] == []
    assert any("'gpucluster_template'" in file.read_text() for file in files)


def test_no_role_validates_arguments_that_validate_yml_has_checked() -> None:
    # It costs each host two processes for each role. An entry point other than main has no specification.
    for file, task in ALL_TASKS:
        assert "roles" not in task, f"{file.name}: use import_role or include_role"
        for call in (task.get(f"ansible.builtin.{verb}_role") for verb in ("import", "include")):
            if call and "tasks_from" not in call:
                assert call["rolespec_validate"] is False, f"{file.relative_to(ANSIBLE)}: {task['name']}"


def test_roles_of_every_node_are_static_imports() -> None:
    # An include is a process for each host, whether it includes something or not. What a cluster may not need is
    # included by one task: each play of nodes has at most one.
    for play in read("site.yml"):
        if play.get("hosts") in ("all", "compute"):
            includes = [task["name"] for task in play["tasks"] if "ansible.builtin.include_role" in task]
            assert len(includes) <= 1, f"{play['name']}: {includes}"


def test_task_files_that_are_named_exist() -> None:
    named = [
        (file, f"roles/{call['name']}/tasks/{re.sub('{{.*}}', '*', call.get('tasks_from', 'main'))}.yml")
        for file, task in ALL_TASKS
        for call in (task.get(f"ansible.builtin.{verb}_role") for verb in ("import", "include"))
        if call and "{{" not in call["name"]
    ]
    assert named
    assert [f"{file.relative_to(ANSIBLE)}: {target}" for file, target in named if not any(ANSIBLE.glob(target))] == []


def test_task_files_that_tests_of_hosts_play_exist() -> None:
    # These tests take long, and few changes of a role run them: a renamed file must show at once.
    played = [
        (file.name, f"roles/{role}/tasks/{tasks}.yml")
        for file in sorted(Path(__file__).parent.glob("test_*.py"))
        for role, tasks in _calls(ast.parse(file.read_text()))
    ]
    assert played
    assert [f"{file}: {target}" for file, target in played if not (ANSIBLE / target).is_file()] == []


def _calls(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Role and task file of each `{"name": ..., "tasks_from": ...}` in a test."""
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):
            pairs = {
                str(key.value): str(value.value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
            }
            if {"name", "tasks_from"} <= set(pairs):
                yield pairs["name"], pairs["tasks_from"]


def test_handlers_that_are_notified_exist() -> None:
    handlers = {task["name"] for file, task in ALL_TASKS if file.parent.name == "handlers"}
    notified = {task["notify"] for _file, task in ALL_TASKS if "notify" in task}
    assert notified
    assert notified <= handlers


def test_no_failure_is_ignored_and_no_shell_is_used() -> None:
    for file, task in ALL_TASKS:
        where = f"{file.relative_to(ANSIBLE)}: {task.get('name')}"
        assert "ignore_errors" not in task, where
        assert "ignore_unreachable" not in task, where
        assert not {"ansible.builtin.shell", "ansible.builtin.raw"} & set(task), where


def test_no_task_looks_away_from_a_status() -> None:
    assert [f"{file}: {task.get('name')}" for file, task in ALL_TASKS if task.get("failed_when") is False] == []


def test_every_command_states_what_a_change_is() -> None:
    for file, task in ALL_TASKS:
        command = task.get("ansible.builtin.command")
        if command is not None:
            where = f"{file.relative_to(ANSIBLE)}: {task.get('name')}"
            assert "argv" in command, f"{where}: words are not split by a shell's rules"
            assert "changed_when" in task or "creates" in command, where


def test_secrets_are_hidden() -> None:
    slurps = [task for _file, task in ALL_TASKS if "munge" in str(task.get("ansible.builtin.slurp"))]
    assert slurps
    assert all(task["no_log"] is True for task in slurps)
    spec = load("module_utils/gpucluster_files.py").FILE_SPEC
    assert spec["content_base64"]["no_log"] is True


SYSTEMS = sorted(path.stem for path in (ANSIBLE / "vars" / "os").glob("*.yml"))


def shape_of(value: Any) -> Any:
    """The keys of nested dictionaries."""
    return {key: shape_of(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def test_no_data_has_a_key_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible warns of it at every run, of a merged key (`<<`) that is given once more as well."""
    monkeypatch.setenv("ANSIBLE_DUPLICATE_YAML_DICT_KEY", "error")
    for pattern in ("group_vars/all/*.yml", "vars/os/*.yml", "roles/*/vars/*.yml", "roles/*/defaults/*.yml"):
        for file in ANSIBLE.glob(pattern):
            assert DataLoader().load_from_file(str(file)) is not None


def test_every_system_has_packages_and_facts() -> None:
    assert sorted(read("group_vars/all/packages.yml")["packages"]) == SYSTEMS


@pytest.mark.parametrize("system", SYSTEMS)
def test_facts_of_systems_have_one_form(system: str) -> None:
    assert shape_of(read(f"vars/os/{system}.yml")) == shape_of(read("vars/os/Debian-13.yml"))
    purposes = {*read("roles/base/vars/main.yml")["base_purposes"], "time"}
    assert set(read("group_vars/all/packages.yml")["packages"][system]) == purposes
    manager = read(f"vars/os/{system}.yml")["os_package_manager"]
    assert (ANSIBLE / "roles" / "base" / "tasks" / f"install_{manager}.yml").is_file()


def test_the_local_cloud_s_image_has_all_packages() -> None:
    lists = read("group_vars/all/packages.yml")["packages"]["Debian-13"]
    text = (Path(__file__).parents[2] / "gpucluster" / "localcloud" / "image" / "packages.txt").read_text()
    image = {line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")}
    # apt must have nothing to do there, or every apply of the local cloud needs the network.
    assert {name for names in lists.values() for name in names} <= image


MODULES = sorted(path.stem for path in (ANSIBLE / "library").glob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_takes_the_interpreter_that_ansible_is_told(module: str) -> None:
    # Another name than "python" would be another variable than ansible_python_interpreter.
    assert (ANSIBLE / "library" / f"{module}.py").read_text().startswith("#!/usr/bin/python\n")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_states_what_it_gives_over_plain_tasks(module: str) -> None:
    docstring = ast.get_docstring(ast.parse((ANSIBLE / "library" / f"{module}.py").read_text()))
    assert "\n\nInstead of plain tasks: " in str(docstring)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_s_documentation_can_be_read(module: str) -> None:
    text = (ANSIBLE / "library" / f"{module}.py").read_text()
    parts = {name: text.split(f'{name} = """')[1].split('"""')[0] for name in ("DOCUMENTATION", "EXAMPLES", "RETURN")}
    documentation = yaml.safe_load(parts["DOCUMENTATION"])
    assert documentation["module"] == module
    assert all(set(option) >= {"description", "type"} for option in documentation["options"].values())
    assert yaml.safe_load(parts["EXAMPLES"])[0][module]
    assert yaml.safe_load(parts["RETURN"])


def test_the_service_module_documents_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ANSIBLE / "library" / "gpucluster_service.py").read_text()
    documentation = yaml.safe_load(text.split('DOCUMENTATION = """')[1].split('"""')[0])["options"]
    # Ansible puts our module_utils beside its own.
    monkeypatch.setattr(module_utils, "__path__", [*module_utils.__path__, str(ANSIBLE / "module_utils")])
    files, units, trials = (load(f"module_utils/gpucluster_{name}.py") for name in ("files", "units", "trials"))
    for option, spec in (("files", files.FILE_SPEC), ("units", units.UNIT_SPEC), ("trials", trials.TRIAL_SPEC)):
        documented = documentation[option]["suboptions"]
        known = {"description", "type", "required", "default", "choices", "elements", "suboptions"}
        assert [name for name, entry in documented.items() if not set(entry) <= known] == []
        assert {name: entry["type"] for name, entry in documented.items()} == {
            name: entry["type"] for name, entry in spec.items()
        }
