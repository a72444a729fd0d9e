"""A run of a cluster: one at a time, on this machine and on every other one that shares its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpucluster.events import Sink
from gpucluster.lifecycle.ownership import Ownership
from gpucluster.lifecycle.run_lock import RunLock
from gpucluster.paths import ClusterPaths
from gpucluster.process import signals
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace import run as runs
from gpucluster.workspace.run import Run


class ClusterRuns:
    """Begins the runs of one cluster.

    Args:
        terraform: makes a Terraform that can hold the state.
    """

    def __init__(
        self,
        *,
        paths: ClusterPaths,
        ownership: Ownership,
        run_lock: RunLock,
        terraform: Callable[[], Terraform],
        on_event: Sink,
    ) -> None:
        self._paths = paths
        self._ownership = ownership
        self._run_lock = run_lock
        self._terraform = terraform
        self._on_event = on_event

    @contextmanager
    def run(self, command: str, *, changes: bool = True, prepares: bool = False) -> Iterator[Run]:
        """Hold the cluster for one run.

        Args:
            changes: the run may change the cluster: it must be the one of this folder.
            prepares: the run begins with `Provisioning.prepare`, which asks that itself.

        Raises:
            OtherClusterError: it is not, or is not known to be; nothing was changed.
            LockedError: another run holds it.
        """
        self._ownership.require_name()
        with runs.run(command, self._paths, self._on_event) as run, self._terraform().hold_state():
            self._ownership.forget()
            self._run_lock.begin(command)
            try:
                if changes and not prepares:
                    self._ownership.require()
                yield run
            finally:
                signals.surely(self._run_lock.end)  # no Ctrl-C, not even the first, may leave a lock
                self._ownership.forget()
