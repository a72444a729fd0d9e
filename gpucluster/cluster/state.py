"""`cluster.state`: Terraform's state, its outputs and its lock, and whether it is of this folder's cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpucluster.cluster.composition import Parts, compose
from gpucluster.errors import ToolError
from gpucluster.lifecycle.adoption import Recovered
from gpucluster.terraform import provider_lock


class StateOperations:
    """Operates the state of one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def outputs(self) -> Mapping[str, object]:
        """Terraform's outputs, versioned (`contract_version`).

        Raises:
            OtherClusterError: they are of another cluster than cluster.yml names.
            TerraformError: the state can't be read.
            ToolError: there is no cluster, or its state is lost.
        """
        outputs = self._parts.identity.ownership.outputs()
        if not outputs:
            raise unknown(self._parts)
        return outputs

    def recover(self, cluster_id: str = "") -> Recovered:
        """Put what the cloud has of this cluster into Terraform's state, which was lost. Nothing else is changed.

        Args:
            cluster_id: the identity of the cluster to adopt; empty: that of `Cluster`, or what this machine knows.

        Raises:
            OtherClusterError: nothing shows that it is this folder's cluster: no identity was named, and this machine
                knows none.
            ToolError: two resources could be the same.
            GpuClusterError: see `errors`; what was adopted until then is in the state.
        """
        parts = self._parts
        if cluster_id:
            parts = compose(replace(parts.options, cluster_id=cluster_id))
        with parts.identity.runs.run("state recover", prepares=True) as run:
            parts.identity.ownership.require(strict=True)
            parts.programs.terraform().set_damaged_state_aside()
            terraform = parts.phases.provisioning.prepare(run, recovering=True)
            return parts.phases.provisioning.recover(terraform, run)

    def unlock(self, lock_id: str) -> str:
        """Remove the lock of a run of another machine or folder that does not run any more. Returns which run it was.

        Args:
            lock_id: as the refusal of another run names it.

        Raises:
            OtherClusterError: the cluster is not known to be the one of this folder.
            InputError: no run holds it, or another one.
        """
        identity = self._parts.identity
        identity.ownership.forget()
        if self._parts.spec.state.backend != "local":
            # A remote state names its cluster, and its own lock is the one of a run.
            return self._parts.programs.terraform().unlock_state(lock_id)
        return identity.run_lock.described(identity.ownership.unlock(lock_id))

    def lock_provider(self) -> tuple[Path, bool]:
        """Keep the version and the checksums of Terraform's provider in a file that every later run keeps to.

        Returns:
            The file, and whether it changed.

        Raises:
            InputError: no run on this machine has recorded them yet, or the provider is a part of gpucluster.
            EnvironmentFault: the file can't be written.
        """
        file = provider_lock.path_of(self._parts.spec.file)
        return file, self._parts.programs.terraform().keep_provider_lock()

    def require_name(self) -> None:
        """Refuse a folder whose local state is that of another cluster than cluster.yml names. Asks no service.

        Raises:
            OtherClusterError: with both names.
        """
        self._parts.identity.ownership.require_name()

    def require_own(self) -> None:
        """Refuse a cluster in the cloud that is not known to be the one of this folder. Reads only. What changes
        something asks this itself.

        Raises:
            OtherClusterError: with the facts, and how to name that cluster.
            GpuClusterError: the state can't be read, or the cloud refused.
        """
        ownership = self._parts.identity.ownership
        ownership.forget()
        ownership.require(strict=True)


def unknown(parts: Parts) -> ToolError:
    """The error for an empty state."""
    if parts.connections.locator.locate():
        return ToolError(
            f"the cloud has a cluster {parts.spec.name}, and this folder has no state of it",
            hint="If another operator has built it, choose another `name`. If it is yours, its state is lost. Run: "
            "gpucluster state recover",
        )
    return ToolError("there is no cluster yet", hint="Run: gpucluster apply")
