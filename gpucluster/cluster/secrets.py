"""`cluster.secrets`: rotation of what the hosts trust each other by."""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster.cluster.composition import Parts
from gpucluster.operations.rotation import RotatableSecret, Rotation, Rotations, chosen


class SecretOperations:
    """Rotates the secrets of one cluster."""

    def __init__(self, parts: Parts) -> None:
        connections = parts.connections
        self._parts = parts
        self._rotations = Rotations(parts.spec, connections.controller, connections.control_plane, parts.on_event)

    def list(self) -> tuple[RotatableSecret, ...]:
        """The secrets that `rotate` can change, when that was last done, and what was interrupted. Reads only.

        Raises:
            InputError: the cluster has nothing to rotate.
            ToolError: there is no cluster, or the controller does not answer.
        """
        return self._rotations.present()

    def rotate(self, what: Sequence[str]) -> Rotation:
        """Change secrets of the cluster on all hosts while jobs run.

        "munge", the key of a cluster with Slurm: slurmctld stops for some seconds, no job starts then, and commands of
        users wait. "passwords", with which hosts read the directory: SSSD starts again on each host. "kubernetes", the
        certificates of a control plane on the controller: the API server stops for up to a minute. May be killed at any
        point; the same call goes on. It also completes a rotation that hosts have not confirmed.

        Args:
            what: names of `list`, or "all".

        Raises:
            InputError: one of them can't be rotated, or the cluster does not have it.
            UnconfirmedError: the secret is changed, and hosts have not confirmed that they use it. What follows was
                rotated nevertheless; `done` has all of it.
            GpuClusterError: see `errors`; a host in service that does not answer ends it before anything is switched.
        """
        chosen(what, self._parts.spec)
        with self._parts.identity.runs.run("rotate"):
            return self._rotations.rotate(what)
