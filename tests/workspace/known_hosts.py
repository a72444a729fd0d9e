"""A folder `.gpucluster` as a run leaves it that has reached the controller."""

from __future__ import annotations

from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.ssh import Host, SshClient
from gpucluster.workspace.saved_state import SavedState


def save_controller(folder: Path, name: str) -> None:
    """Let a cluster's folder know the controller, so that no command asks where it is."""
    save_hosts(folder, name)


def save_hosts(folder: Path, *names: str) -> None:
    """Let a cluster's folder know these hosts, the controller first."""
    paths = ClusterPaths(folder / ".gpucluster")
    paths.create()
    hosts = [
        Host(name, f"10.77.0.{number}", "debian", f"ocid1.instance.test..{name}")
        for number, name in enumerate(names, start=2)
    ]
    SavedState(paths).save_hosts(hosts, {host.instance_id for host in hosts})
    SshClient(paths, None).write(hosts)
