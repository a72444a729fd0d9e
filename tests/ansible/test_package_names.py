"""Every package that the roles install is in that system's repositories: one missing name fails the whole install."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from tests.ansible.loading import read
from tests.ansible.package_names import OF_CONTROLLERS, SUITES, is_controller, lists, names, snapshot

SNAPSHOT = snapshot()
INSTALL = "dnf --assumeyes --quiet install oracle-epel-release-el8"
SYSTEMS = sorted(read("group_vars/all/packages.yml")["packages"])


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_package_is_in_a_repository_of_its_system(system: str) -> None:
    there = SNAPSHOT[system]["packages"]
    missing = names(system) - set(there)
    assert not missing, f"not in package_names.toml; for Debian run: python -m tests.ansible.package_names. {missing}"
    assert not set(there) - names(system), "no role installs these any more"
    assert isinstance(SNAPSHOT[system]["date"], datetime.date)


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - set(SUITES)))
def test_every_repository_is_enabled_and_every_entry_has_a_source(system: str) -> None:
    # The role docker adds Docker's repository where the distribution has no package.
    enabled = {*SNAPSHOT[system]["enabled"], *read(f"vars/os/{system}.yml")["os_package_repositories"], "docker"}
    for name, (repository, _version, source) in SNAPSHOT[system]["packages"].items():
        assert repository in enabled, f"{name} is in {repository}, which nothing enables on {system}"
        assert source in SNAPSHOT["sources"], name


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_only_controllers_need_is_listed_only_for_systems_that_may_be_one(system: str) -> None:
    listed = {purpose for purpose in OF_CONTROLLERS if lists(system)[purpose]}
    assert listed == (set(OF_CONTROLLERS) if is_controller(system) else set())


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system.startswith("OracleLinux")])
def test_epel_comes_with_its_release_package(system: str) -> None:
    """Without it dnf ends with `Unknown repo`."""
    facts = read(f"vars/os/{system}.yml")
    version = system.rpartition("-")[2]
    assert f"ol{version}_developer_EPEL" in facts["os_package_repositories"]
    assert facts["os_repository_packages"] == [f"oracle-epel-release-el{version}"]


@pytest.mark.parametrize(
    ("registered", "installed", "calls"),
    [
        (True, False, ["osms unregister", "rpm --query --quiet oracle-epel-release-el8", INSTALL]),
        (True, True, ["osms unregister", "rpm --query --quiet oracle-epel-release-el8"]),
        (False, False, ["rpm --query --quiet oracle-epel-release-el8", INSTALL]),
    ],
)
def test_repositories_are_freed_and_named_before_dnf_is_asked(
    registered: bool, installed: bool, calls: list[str], tmp_path: Path
) -> None:
    """osms, rpm and dnf are doubles that write down how they are called; unregistering fails, as on a host without a
    registration."""
    task = next(task for task in read("roles/base/tasks/install_dnf.yml") if "base_script" in task.get("vars", {}))
    for name, code in {"rpm": int(not installed), "dnf": 0, **({"osms": 1} if registered else {})}.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\nexit {code}\n')
        program.chmod(0o755)
    argv = ["/bin/sh", "-c", task["vars"]["base_script"], "sh", "oracle-epel-release-el8"]
    subprocess.run(argv, check=True, env={"PATH": str(tmp_path)})
    assert (tmp_path / "calls").read_text().splitlines() == calls
