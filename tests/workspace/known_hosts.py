"""A folder `.gpucluster` as a run leaves it that has reached the controller."""

from __future__ import annotations

from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.ssh import Host, SshClient
from gpucluster.workspace.saved_state import SavedState


def save_controller(folder: Path, name: str) -> None:
    """Let a cluster's folder know the controller, so that nobody is asked where it is."""
    paths = ClusterPaths(folder / ".gpucluster")
    paths.create()
    host = Host(name, "10.77.0.2", "debian", "ocid1.instance.test..controller")
    SavedState(paths).save_hosts([host], {host.instance_id})
    SshClient(paths, None).write([host])
