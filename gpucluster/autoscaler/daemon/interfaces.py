"""What the reconcile loop needs of Slurm, the cloud, the ledger and the spool. Tests pass doubles of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from gpucluster.autoscaler.decide.types import (
    CloudInstance,
    Fault,
    Intent,
    Job,
    Memory,
    Node,
    ScalingPlan,
    SlurmAction,
)


class Slurm(Protocol):
    """Slurm (`daemon.slurm.SlurmClient`), or Kubernetes as if it were Slurm (`daemon.kubernetes.KubernetesClient`).

    Each call raises GpuClusterError when the scheduler does not answer.
    """

    def nodes(self) -> Mapping[str, Node]:
        """The nodes of elastic pools."""

    def node_states(self, names: Iterable[str]) -> Mapping[str, Node]:
        """Some of them, as they are now."""

    def jobs(self) -> Mapping[str, Job]:
        """The jobs that are not finished."""

    def apply(self, action: SlurmAction) -> None:
        """Carry out an action."""


class CloudApi(Protocol):
    """The cloud (`daemon.oci.OciCloud`)."""

    def instances(self, remembered: Collection[str] = ()) -> tuple[CloudInstance, ...]:
        """The elastic instances."""

    def cause(self, instance_id: str) -> tuple[Fault, str] | None:
        """Why a launch failed that the cloud had accepted."""

    def launch(self, pool: str, node: str, generation: int, token: str) -> tuple[str, str]:
        """Launch an instance; returns its id, and the request's id."""

    def terminate(self, instance_id: str) -> bool:
        """Terminate an instance."""

    def report_host(self, instance_id: str) -> bool:
        """Report the physical host of an instance to Oracle; False if it was reported before, or is gone."""

    def address(self, instance_id: str) -> str:
        """The private address of an instance."""

    def console(self, instance_id: str, timeout: float) -> str:
        """The console output of an instance."""


class LedgerStore(Protocol):
    """The ledger (`daemon.ledger.Ledger`)."""

    def load(self) -> Memory:
        """The memory that was last written."""

    def commit(self, memory: Memory, decided: ScalingPlan, now: float) -> None:
        """Write the memory, and what is about to be done."""


class HookSpool(Protocol):
    """The hooks' spool (`daemon.spool.Spool`)."""

    def read(self) -> Sequence[tuple[str, Intent]]:
        """The records that hooks wrote, each with the name of its file."""

    def waits(self) -> bool:
        """Whether there is a record."""

    def remove(self, names: Collection[str]) -> None:
        """Remove records that are in the ledger."""
