"""The Python of a host, where the system's own is too old for Ansible: a trap of real images, in a container.

The trap's Python 3.6 is a double: no archive in reach has a real one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.image import traps
from gpucluster.node_agent.interpreter import PYTHON
from gpucluster.systems import host_python, matrix
from tests.ansible.in_container import Host, Played, host
from tests.ansible.loading import ANSIBLE, read
from tests.ansible.render import INVENTORY
from tests.ansible.test_software_module import index
from tests.mirror import Mirror

TRAP = traps.FOLDER / "old-python"
CLIENT = "/usr/local/lib/gpucluster/ansible-python"
#: What an ordinary task of a role is run by.
WHO = {"command": {"argv": ["sh", "-c", "cat /proc/$PPID/comm; tr '\\0' ' ' < /proc/$PPID/cmdline"]}}
FIRST = {"import_role": {"name": "base", "tasks_from": "gather_facts"}}
SYSTEMS = {found.system: found for found in host_python.PYTHONS}


def of_vars_file(system: str) -> host_python.HostPython:
    name, _dash, version = system.partition("-")
    return SYSTEMS[f"{ {'OracleLinux': 'ol'}.get(name, name.lower()) }-{version}"]


@pytest.mark.parametrize("system", sorted(path.stem for path in (ANSIBLE / "vars/os").glob("*.yml")))
def test_the_roles_have_the_pythons_of_the_table(system: str) -> None:
    python, interpreter = of_vars_file(system), read(f"vars/os/{system}.yml")["os_python"]
    assert interpreter in ("{{ host_python }}", f"/usr/bin/python{python.of_autoscaler}")
    if interpreter != "{{ host_python }}" and (row := matrix.find(*python.image)) and row.controller:
        assert python.package in read("group_vars/all/packages.yml")["packages"][system]["autoscaler"]
    else:
        assert python.of_autoscaler in (None, python.version)


def test_the_link_is_the_one_that_ansible_is_told() -> None:
    assert read("group_vars/all/cluster.yml")["host_python"] == PYTHON


@pytest.mark.parametrize(
    ("system", "version", "python"),
    [
        ("Debian", "13", "3.13"),
        ("Debian", "12", "3.11"),
        ("Canonical Ubuntu", "24.04", "3.12"),
        ("Canonical Ubuntu", "24.04 Minimal", None),
        ("Oracle Linux", "9", "3.12"),
        ("Oracle Linux", "8.10", "3.12"),
        ("Windows", "2022", None),
        (None, None, None),
    ],
)
def test_the_python_of_the_autoscaler_in_an_image(system: str | None, version: str | None, python: str | None) -> None:
    found = host_python.of_image(system, version)
    assert (found.of_autoscaler if found else None) == python


def test_every_python_is_new_enough() -> None:
    for python in host_python.PYTHONS:
        for version, oldest in (
            (python.version, host_python.OLDEST),
            (python.of_autoscaler, host_python.OLDEST_OF_AUTOSCALER),
        ):
            if version:
                assert [int(part) for part in version.split(".")] >= [int(part) for part in oldest.split(".")]
    assert SYSTEMS["ol-8"].version == "3.12"
    assert SYSTEMS["ol-9"].version == "3.9"


def test_the_document_has_the_table() -> None:
    file = ANSIBLE.parent / "docs" / "explanation" / "first-boot.md"
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", file.read_text(), re.MULTILINE)
    for python in host_python.PYTHONS:
        row = (" ".join(python.image), python.own, python.version, python.of_autoscaler or "none")
        assert row in [tuple(cell.strip() for cell in cells) for cells in rows], row


class Trapped:
    """A container whose /usr/bin/python3 is 3.6, and which has not booted with our user data."""

    def __init__(self, node: Host, folder: Path) -> None:
        self.node, self.folder = node, folder

    def play(self, *tasks: dict[str, Any], check: bool = True, options: tuple[str, ...] = (), **more: Any) -> Played:
        return self.node.play(list(tasks), {**INVENTORY, "ansible_user": "root", **more}, "-v", *options, check=check)

    def provide(self, *options: str, check: bool = True) -> str:
        """Run the script as user data does."""
        return self.node.run(
            "sh", "-c", host_python.script(), "host_python", *options, *host_python.arguments(), check=check
        ).strip()


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trapped]:
    with host() as node:
        node.run("rm", "-r", str(Path(PYTHON).parent))
        # What only the system's own Python has.
        node.run("dpkg", "--remove", "--force-depends", "python3-apt")
        root = f"/proc/{node.pid}/root"
        subprocess.run(["sh", str(TRAP / "apply.sh"), root], check=True)
        yield Trapped(node, tmp_path_factory.mktemp("trapped"))


@pytest.mark.containers
def test_the_trap_is_one(trapped: Trapped) -> None:
    assert trapped.node.run("/usr/bin/python3", "-V") == "Python 3.6.8\n"
    assert "SyntaxError" in trapped.node.run("python3", "-c", "from __future__ import annotations", check=False)
    played = trapped.play({"ping": {}}, check=False, ansible_python_interpreter="/usr/bin/python3")
    assert "failed=1" in played.said
    # The system's own programs work, as those of Oracle Linux do.
    assert "cloud-init" in trapped.node.run("cloud-init", "--version")
    trapped.node.run("py3compile", "--package", "python3-yaml")


@pytest.mark.containers
def test_a_rehearsal_finds_a_python_and_makes_no_link(trapped: Trapped) -> None:
    assert "failed=0" in trapped.play(FIRST, options=("--check",)).said
    assert not trapped.node.exists(PYTHON)


@pytest.mark.containers
def test_the_first_task_makes_the_link_and_all_others_use_the_server_that_forks(trapped: Trapped) -> None:
    # A link of an earlier release of the system counts as none.
    trapped.node.run("mkdir", "-p", str(Path(PYTHON).parent))
    trapped.node.run("ln", "-s", "/usr/bin/python3.4", PYTHON)
    said = trapped.play(FIRST, WHO).said
    assert trapped.node.run("readlink", PYTHON).strip() == "/usr/bin/python3.13"
    assert trapped.node.read(CLIENT).startswith(f"#!{PYTHON} -IS\n")
    assert "gpucluster-task" in said
    # Without the server, the same programs run the plain interpreter.
    trapped.node.run("rm", "-r", "/run/gpucluster-python")
    said = trapped.play(WHO, ansible_python_interpreter=CLIENT).said
    assert "gpucluster-task" not in said
    assert PYTHON in said


@pytest.mark.containers
def test_packages_are_installed_without_the_bindings_of_apt(trapped: Trapped) -> None:
    mirror = Mirror(trapped.folder / "mirror")
    mirror.deb("helper", "1", {"/usr/share/helper": "here"}, architecture="all")
    mirror.file("Packages", index(mirror))
    node = trapped.node
    node.run("sh", "-c", "rm -rf /etc/apt/sources.list* /var/lib/apt/lists/*; mkdir /etc/apt/sources.list.d")
    with mirror.serve() as server:
        line = f"deb [trusted=yes] {server.url} ./"
        node.run("sh", "-c", f"echo '{line}' > /etc/apt/sources.list.d/test.list")
        facts = {"gpucluster_host": {"missing_packages": ["helper"], "python": PYTHON}}
        install = {"import_role": {"name": "base", "tasks_from": "install_apt"}}
        assert trapped.play({"set_fact": {"ansible_facts": facts}}, install, ansible_facts=facts).changed == 1
    assert node.read("/usr/share/helper") == "here"


@pytest.mark.containers
def test_a_package_brings_the_python_where_none_is_new_enough(trapped: Trapped) -> None:
    node = trapped.node
    node.run("sh", "-c", f"rm {PYTHON}; mv /usr/bin/python3.13 /usr/bin/apt-get /root; cp /etc/os-release /root")
    node.run("sh", "-c", 'rm /etc/os-release; printf \'ID="ol"\\nVERSION_ID="8.10"\\n\' > /etc/os-release')
    # A double of the package manager of Oracle Linux, and no time between its tries.
    dnf = '#!/bin/sh\n[ "$*" = "-qy install python3.12" ] || exit 2\n'
    node.run("sh", "-c", "mv /usr/bin/sleep /root; ln -s /bin/true /usr/bin/sleep")
    try:
        node.run("sh", "-c", f"printf '%s' '{dnf}echo no repository; exit 1' > /usr/bin/dnf; chmod +x /usr/bin/dnf")
        said = trapped.provide(check=False)
        assert "no Python 3.9 or later on this host (ol-8)" in said
        assert "(package python3.12)" in said
        assert "no repository" in said
        node.run("sh", "-c", f"printf '%s' '{dnf}cp /root/python3.13 /usr/bin/python3.12' > /usr/bin/dnf")
        assert "no Python" in trapped.provide("--look", check=False)
        assert trapped.provide() == PYTHON
        assert node.run("readlink", PYTHON).strip() == "/usr/bin/python3.12"
        assert "failed=0" in trapped.play({"ping": {}}).said
    finally:
        node.run("sh", "-c", "mv -f /root/python3.13 /root/apt-get /root/sleep /usr/bin; cp /root/os-release /etc")
