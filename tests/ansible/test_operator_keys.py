"""The operators' keys on hosts: what the role `base` changes in files that cloud-init has written.

tests/e2e/test_changes.py has the same on a cluster with the real cloud-init. node_agent/standby does it on the standby.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.standby import operator_keys
from tests.ansible.in_container import Host
from tests.ansible.in_container import host as in_container
from tests.ansible.loading import ANSIBLE, load, read, tasks_of

pytestmark = pytest.mark.containers

facts = load("module_utils/gpucluster_host_facts.py")
USER, ROOT = "/root/home/.ssh/authorized_keys", "/root/.ssh/authorized_keys"
FIRST, SECOND, THIRD = "ssh-ed25519 AAAAfirst", "ssh-rsa AAAA+second/==", "sk-ssh-ed25519@openssh.com AAAAthird"
CONTROLLERS = "ssh-ed25519 AAAAcontroller root@controller"
REFUSES = 'no-pty,command="echo \'Please login as \\"debian\\".\';exit 142"'


def configured(operators: Sequence[str], launched: Sequence[str], *, permanent: bool = True) -> list[dict[str, Any]]:
    """The role's own task, with those of its files that are about keys."""
    name = "Configure names, limits, keys and time"
    (task,) = (each for each in tasks_of(read("roles/base/tasks/configure.yml")) if each.get("name") == name)
    own = {key: value for key, value in task["vars"].items() if "key" in key and key != "base_controller_key"}
    (of_user,) = (each for each in task["vars"]["base_files"] if str(each["path"]).endswith(".ssh/authorized_keys"))
    conditional = next(
        line.strip(" +") for line in task["gpucluster_service"]["files"].splitlines() if "former" in line
    )
    seen = {"gpucluster_host": {"launch_keys": sorted(launched), "user_home": "/root/home"}}
    return [
        {"set_fact": {"ansible_facts": seen}},
        {
            "gpucluster_service": {"files": f"{{{{ [test_of_user] + {conditional} }}}}"},
            "vars": {
                **own,
                "test_of_user": of_user,
                "base_operator_keys": list(operators),
                "gpucluster_hosts": [{"name": "compute-1"}] if permanent else [],
                "base_controller_key": CONTROLLERS,
                "ansible_user": "root",
            },
        },
    ]


@pytest.fixture(scope="module")
def made() -> Iterator[Host]:
    with in_container() as node:
        template = "authorized_keys.j2"
        (node.folder / template).symlink_to(ANSIBLE / "roles/base/templates" / template)
        yield node


@pytest.fixture
def host(made: Host) -> Host:
    """With the files as cloud-init has left them."""
    made.run("mkdir", "-p", "/root/home/.ssh", "/root/.ssh")
    for path, text in (
        (USER, f"{FIRST} alice\n{SECOND} bob\n{THIRD} by hand\n"),
        (ROOT, f"{REFUSES} {FIRST} alice\n{REFUSES} {SECOND} bob\n"),
    ):
        made.run("sh", "-c", 'printf "%s" "$0" > "$1"', text, path)
    return made


def block(*operators: str) -> str:
    """What seal divides: tests/node_agent/test_host_identity.py."""
    lines = "".join(f"{key}\n" for key in operators)
    return f"# BEGIN gpucluster\n{lines}# Of the controller:\n{CONTROLLERS}\n# END gpucluster\n"


def test_a_key_that_has_left_goes_one_that_is_new_comes_and_a_former_one_comes_back(host: Host) -> None:
    launched, before = [FIRST, SECOND], (host.read(USER), host.read(ROOT))
    host.play(configured([f"{SECOND} bob", f"{FIRST} alice"], launched), {})
    assert host.read(USER) == before[0] + block(f"{SECOND} bob", f"{FIRST} alice")
    assert host.read(ROOT) == before[1]

    new = "ssh-ed25519 AAAAnew dave@desk"
    tasks = configured([f"{SECOND} bob", new], launched)
    assert host.play(tasks, {}).changed == 1
    assert host.read(USER) == f"{SECOND} bob\n{THIRD} by hand\n" + block(f"{SECOND} bob", new)
    assert host.read(ROOT) == f"{REFUSES} {SECOND} bob\n"
    assert host.play(tasks, {}).changed == 0

    # The standby, which no role configures, comes to the same.
    standby = operator_keys.rewritten(before[0], [f"{SECOND} bob", new], launched)
    role = [operator_keys.words(line) for line in host.read(USER).splitlines() if line != CONTROLLERS]
    assert [words for words in role if words] == [
        words for line in standby.splitlines() if (words := operator_keys.words(line))
    ]

    host.play(configured([FIRST, SECOND], launched), {})
    assert host.read(USER) == f"{SECOND} bob\n{THIRD} by hand\n" + block(FIRST, SECOND)


def test_an_elastic_node_keeps_the_key_by_which_the_controller_configures_it(host: Host) -> None:
    before = host.read(USER), host.read(ROOT)
    host.play(configured([SECOND], [FIRST, SECOND], permanent=False), {})
    assert (host.read(USER), host.read(ROOT)) == (before[0] + block(SECOND), before[1])


def test_without_a_key_in_cluster_yml_no_key_is_taken_away(host: Host) -> None:
    before = host.read(USER)
    host.play(configured([], [FIRST, SECOND]), {})
    assert host.read(USER) == f"{before}# BEGIN gpucluster\n{CONTROLLERS}\n# END gpucluster\n"


def test_the_fact_has_the_keys_of_the_launch_as_cloud_init_records_them(tmp_path: Path) -> None:
    document = {"v1": {"public_ssh_keys": [f"{SECOND} bob", FIRST]}, "ds": {}}
    record = tmp_path / "run/cloud-init/instance-data.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(document))
    assert (
        facts.launch_keys(record.read_text())
        == sorted([FIRST, SECOND])
        == sorted(operator_keys.launched_with(tmp_path))
    )
    for text in ("", "{", "[]", '{"v1": {}}', '{"v1": {"public_ssh_keys": null}}'):
        record.write_text(text)
        assert (facts.launch_keys(text), operator_keys.launched_with(tmp_path)) == ([], frozenset())
