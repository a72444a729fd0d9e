"""What `gpucluster status` reports of a cluster: its hosts, Slurm's nodes, the autoscaler, the last run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from gpucluster.errors import GpuClusterError
from gpucluster.operations.controller import ControllerConnection
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.workspace.run_log import last_run


class ClusterState(StrEnum):
    """Whether a run has found hosts of the cluster."""

    ABSENT = "absent"
    PRESENT = "present"


def status(spec: ClusterSpec, paths: ClusterPaths, controller: ControllerConnection) -> dict[str, Any]:
    """Collect the status. Reads only; takes no lock.

    Returns:
        {name, state: "absent" | "present", last_run, hosts: [{name, address}], slurm: [{node, state, partition}],
        autoscaler: its own status, None if no pool is elastic, {"error": ...} if it does not answer}

    Raises:
        ToolError: the controller does not answer.
    """
    hosts = controller.hosts()
    return {
        "name": spec.name,
        "state": ClusterState.PRESENT if hosts else ClusterState.ABSENT,
        "last_run": last_run(paths) if paths.runs.is_dir() else None,
        "hosts": [{"name": host.name, "address": host.address} for host in hosts],
        "slurm": controller.slurm_nodes() if hosts and spec.slurm.enabled else [],
        "autoscaler": _autoscaler(controller) if hosts and spec.elastic_pools else None,
    }


def _autoscaler(controller: ControllerConnection) -> dict[str, Any]:
    try:
        return controller.autoscaler_status()
    except GpuClusterError as error:
        return {"error": error.what}
