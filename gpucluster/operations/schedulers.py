"""What depends on the scheduler of a cluster: who takes nodes out of service, and commands that only Slurm has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from gpucluster.errors import InputError
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.spec import ClusterSpec


class SchedulerNodes(Protocol):
    """Takes nodes out of service before they are removed, replaced or rebooted, and lets them in again: `Draining` of
    Slurm, `ControlPlaneClient` of Kubernetes."""

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        """Let nothing new start on these nodes, and wait until nothing runs there. Names that the scheduler does not
        know are skipped.

        Args:
            reasons: why, by the node's name: one of `node_agent.rules.reasons`.
            timeout: seconds to wait. With 0 there is no wait: what runs there is ended; and if the scheduler does not
                answer, that is only a warning.

        Raises:
            ToolError: something still runs there (the text names it), or the scheduler does not answer. The nodes stay
                out of service.
        """

    def remove(self, names: Collection[str]) -> None:
        """Forget these nodes, which were drained and whose machines go now. Names that it does not know are skipped.

        Raises:
            ToolError: the scheduler does not answer.
        """

    def resume(self, names: Collection[str]) -> None:
        """Let the nodes among these into service that an earlier run has drained. If the scheduler does not answer,
        none is."""

    def await_answers(self, names: Collection[str]) -> None:
        """Wait until these nodes, which have booted, have reported to the scheduler. If they do not in time, the checks
        report it."""


def kubernetes_nodes(control_plane: ControlPlaneClient) -> list[dict[str, Any]]:
    """The nodes of Kubernetes for `gpucluster status`: [{node, state, pool, version}]. The state is that of
    `kubectl get nodes`. The controller is one of them, and has no pool.

    Raises:
        ToolError: the controller or the API server gives no answer.
    """
    words = {"True": "Ready", "False": "NotReady"}
    return [
        {
            "node": name,
            "state": words.get(node.ready, "Unknown") + (",SchedulingDisabled" if node.cordoned else ""),
            "pool": node.labels.get("gpucluster.io/pool", ""),
            "version": node.version,
        }
        for name, node in sorted(control_plane.nodes().items())
    ]


def require_slurm(spec: ClusterSpec, what: str, *, kubernetes: str, otherwise: str = "") -> None:
    """Refuse a command that is Slurm's.

    Args:
        what: what needs Slurm, as the beginning of a sentence.
        kubernetes: the next command on a cluster with Kubernetes.
        otherwise: that on a cluster without a scheduler.

    Raises:
        InputError: the cluster has another scheduler, or none.
    """
    if spec.slurm.enabled:
        return
    hint = kubernetes if spec.scheduler == "kubernetes" else otherwise
    raise InputError(
        f"{what} needs Slurm, and the scheduler of this cluster is {spec.scheduler}", where=str(spec.file), hint=hint
    )
