"""What the roles make of a login node, from their templates; tests/e2e/test_changes.py tries a real one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ansible.render import CONTROLLER, INVENTORY, evaluate, host_facts, render, render_slurm, variables

LOGIN = "demo-login-1"
SOURCE = {"component": "slurm", "version": "26.05.5", "file": "slurm.tar.gz", "sha256": "a" * 64}


def gated(role: str, host: str = LOGIN, **inventory: Any) -> dict[str, Any]:
    """The variables of a host in a cluster with a login node."""
    hosts = [*INVENTORY["gpucluster_hosts"], {"name": LOGIN, "address": "10.0.0.3"}]
    facts = host_facts() | {"machine": "x86_64"}
    known = variables({"gpucluster_hosts": hosts, **inventory}, role=role, host=host, facts=facts)
    known["groups"] = {**known["groups"], "login": [LOGIN]}
    known["hostvars"][LOGIN] = {"ansible_facts": known["ansible_facts"], "inventory_hostname": LOGIN}
    return known


def test_only_operators_log_in_to_the_controller_of_a_cluster_with_login_nodes() -> None:
    assert "AllowGroups root debian privilege\n" in render("base", "sshd.conf", gated("base", CONTROLLER))
    for known in (gated("base", LOGIN), gated("base", "compute-1"), variables(role="base")):
        assert "AllowGroups" not in render("base", "sshd.conf", known)


def test_processes_of_removed_users_are_ended_on_login_nodes() -> None:
    known = gated("people", CONTROLLER)
    for name in known["hostvars"]:
        known["hostvars"][name]["ansible_user"] = "debian"
    assert LOGIN in evaluate("{{ people_static_logins }}", known)


def test_every_host_knows_login_nodes_by_one_name() -> None:
    assert "10.0.0.3 demo-login-1 login\n" in render("base", "hosts", gated("base", "compute-1"))


@pytest.mark.parametrize("host", [CONTROLLER, LOGIN, "compute-1"])
def test_a_login_node_gets_no_daemon_of_slurm_and_no_directory(host: str) -> None:
    purposes = evaluate("{{ base_purposes }}", gated("base", host, slurm_release="distribution"))
    wanted = {name for name, value in purposes.items() if value is True or value == "True"}
    daemons = {CONTROLLER: {"slurm_controller", "directory_server", "accounting_database"}, LOGIN: set()}
    assert wanted & {"slurm_controller", "slurm_node", "directory_server", "accounting_database"} == (
        daemons.get(host, {"slurm_node"})
    )
    assert {"slurm", "munge", "directory", "shared_home", "user_python"} <= wanted


def test_built_packages_of_a_login_node_are_the_commands() -> None:
    known = gated("slurm_packages", slurm_release="26.05", software_files=[SOURCE])
    known["os_package_manager"] = "apt"
    names = evaluate("{{ slurm_packages_names }}", known)
    assert "slurm-smd-client" in names
    assert not [name for name in names if "slurmd" in name or "slurmctld" in name]


@pytest.mark.parametrize(("manager", "name"), [("apt", "slurm-smd-slurmrestd"), ("dnf", "slurm-slurmrestd")])
@pytest.mark.parametrize("rest", [True, False])
@pytest.mark.parametrize("host", [CONTROLLER, LOGIN, "compute-1"])
def test_only_a_controller_with_the_rest_api_gets_its_package(host: str, rest: bool, manager: str, name: str) -> None:
    more = {"slurm_release": "26.05", "software_files": [SOURCE], "slurm_rest": rest}
    known = gated("slurm_packages", host, **more) | {"os_package_manager": manager}
    here = rest and host == CONTROLLER
    assert (name in evaluate("{{ slurm_packages_names }}", known)) is here
    for release, wanted in (("26.05", {"rest_proxy"}), ("distribution", {"rest_proxy", "slurm_rest"})):
        purposes = evaluate("{{ base_purposes }}", gated("base", host, **{**more, "slurm_release": release}))
        found = {key for key, value in purposes.items() if value is True or value == "True"}
        assert found & {"rest_proxy", "slurm_rest"} == (wanted if here else set())


def test_a_login_node_builds_for_a_system_that_no_other_host_has() -> None:
    known = gated("slurm_packages", CONTROLLER, slurm_release="26.05", software_files=[SOURCE])
    facts = known["ansible_facts"]["gpucluster_host"] | {"system": "Ubuntu-22"}
    known["hostvars"][LOGIN] = {"ansible_facts": {"gpucluster_host": facts}, "inventory_hostname": LOGIN}
    known["hostvars"][CONTROLLER]["slurm_packages_state"] = {"builds": {"Debian-13-x86_64": {"sha256": "b" * 64}}}
    assert evaluate("{{ slurm_packages_first_of_each_system }}", known) == [LOGIN]


def test_the_version_on_a_login_node_is_compared_with_that_of_the_controller() -> None:
    known = gated("slurm", CONTROLLER)
    known["hostvars"][LOGIN]["slurm_installed_version"] = "26.05.5"
    assert evaluate("{{ slurm_node_versions }}", known)[LOGIN] == "26.05.5"


def test_the_ports_of_srun_are_set_where_there_are_login_nodes() -> None:
    assert "SrunPortRange=61000-64999\n" in render("slurm", "slurm.conf", gated("slurm", CONTROLLER))
    assert "SrunPortRange" not in render_slurm()["slurm.conf"]


def test_of_a_directory_that_exists_some_groups_log_in() -> None:
    """Its groups have small letters, and sshd reads `?` where a name has a blank."""
    directory = {"user_groups": ["HPC Users"], "admin_groups": ["admins"]}
    everywhere = "AllowGroups root debian alice admin2 hpc?users admins\n"
    for known in (
        variables({"users_directory": directory}, role="base"),
        gated("base", LOGIN, users_directory=directory),
    ):
        assert everywhere in render("base", "sshd.conf", known)
    controller = render("base", "sshd.conf", gated("base", CONTROLLER, users_directory=directory))
    assert "AllowGroups root debian privilege admins\n" in controller
