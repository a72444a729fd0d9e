"""Ansible's inventory: that of the last run, and what is read where it can't be."""

from __future__ import annotations

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import ToolError
from gpucluster.lifecycle.locate import HostLocator


def test_the_inventory_of_the_last_run_is_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostLocator, "deployment", lambda _: None)
    file = cluster.paths.ansible / "inventory.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("all: {hosts: {demo-controller: {}}}\n")
    assert cluster.hosts.inventory() == {"all": {"hosts": {"demo-controller": {}}}}
    for damaged in ("{", "7", ""):
        file.write_text(damaged)
        with pytest.raises(ToolError, match="no state of it"):
            cluster.hosts.inventory()


def test_a_command_for_a_host_goes_through_ssh(cluster: Cluster) -> None:
    assert cluster.hosts.ssh_argv(command=["true"])[-3:] == ["demo-controller", "--", "true"]
    assert cluster.hosts.login_addresses() == cluster.hosts.login_addresses() != ()
