"""Drain nodes in Slurm before they are removed: they take no new jobs, and we wait until the jobs on them have ended.

Slurm stores that we drained a node, as the reason that we give. A later run resumes nodes with this reason, and leaves
nodes alone that an administrator has drained.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpucluster import process
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Event, EventKind, Sink, warn
from gpucluster.operations.controller import Controller
from gpucluster.slurm.reasons import REMOVED
from gpucluster.slurm.states import JOB_ON_NODES, SINFO_BUSY, SINFO_CLOSED, sinfo_word

REASON = REMOVED
# Seconds that jobs are given to end, by default.
DRAIN_TIMEOUT = 3600.0
_POLL = 2.0
_TIMEOUT = 60.0
_TRIES = 5
_NOT_FOUND = 127


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm reports it: its state without the flags behind it, and why it is out of service."""

    state: str
    reason: str

    @property
    def takes_jobs(self) -> bool:
        """Whether a new job may start there."""
        return self.state not in SINFO_CLOSED

    @property
    def busy(self) -> bool:
        """Whether a job runs there or is being cleaned up."""
        return self.state in SINFO_BUSY

    @property
    def drained_by_us(self) -> bool:
        """Whether an earlier run has taken it out of service."""
        return not self.takes_jobs and self.reason == REASON


@dataclass(frozen=True)
class SlurmJob:
    """A job that has nodes. `left` is the time that it may still run, `nodes` a list of hosts, as Slurm prints them."""

    id: str
    user: str
    left: str
    nodes: str

    def __str__(self) -> str:
        return f"job {self.id} of {self.user} on {self.nodes} ({self.left} left)"


def nodes_of(said: str) -> dict[str, SlurmNode]:
    """Nodes by name, from lines `name|state|reason` of sinfo; a node of two partitions is there twice."""
    rows = [line.split("|", 2) for line in said.splitlines() if line.count("|") > 1]
    return {name: SlurmNode(sinfo_word(state), reason.strip()) for name, state, reason in rows}


def jobs_of(said: str) -> tuple[SlurmJob, ...]:
    """Jobs, from lines `id|user|time left|nodes` of squeue."""
    rows = [line.split("|", 3) for line in said.splitlines() if line.count("|") > 2]  # noqa: PLR2004
    return tuple(SlurmJob(*row) for row in rows)


class Draining:
    """Drains and resumes Slurm nodes, by commands on the controller."""

    def __init__(self, controller: Controller, on_event: Sink) -> None:
        self._controller = controller
        self._on_event = on_event

    def drain(self, names: Collection[str], timeout: float) -> None:
        """Let these nodes take no new jobs, and wait until no job is on them. Names that Slurm does not know are
        skipped.

        Args:
            timeout: seconds to wait. With 0 we do not wait: jobs are requeued, or cancelled if they can't be requeued,
                and a Slurm that does not answer is only warned about.

        Raises:
            ToolError: jobs still run there, which are named; or Slurm does not answer. The nodes stay drained.
        """
        try:
            known = self._nodes()
            going = [name for name in names if name in known]
            if going and timeout > 0:
                self._wait(going, timeout)
            elif going:
                self._clear(going, known)
        except GpuClusterError as error:
            if timeout > 0:
                raise
            warn(self._on_event, "slurm", f"nodes are removed without draining them in Slurm: {error.what}")

    def resume(self, names: Collection[str]) -> None:
        """Resume those of these nodes that we drained ourselves. A Slurm that does not answer has none to resume."""
        try:
            known = self._nodes()
            back = [name for name in names if name in known and known[name].drained_by_us]
            if back:
                self._update(back, "state=resume")
        except GpuClusterError:
            return
        for name in back:
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "resumed", "it is in cluster.yml again"))

    def _wait(self, going: Sequence[str], timeout: float) -> None:
        until = time.monotonic() + timeout
        reported: tuple[str, ...] = ()
        while True:
            known, jobs = self._observe_with_retries(going)
            if not jobs and not any(node.busy or node.takes_jobs for node in known):
                break
            if time.monotonic() > until:
                raise _unfinished(going, jobs, timeout)
            ids = tuple(job.id for job in jobs)
            if ids != reported:
                reported = ids
                words = "; ".join(map(str, jobs)) or "a job is being cleaned up"
                self._on_event(Event(EventKind.LOG, "slurm", "waiting", f"before nodes are removed: {words}"))
            time.sleep(_POLL)
        for name in going:
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "drained"))

    def _observe_with_retries(self, going: Sequence[str]) -> tuple[list[SlurmNode], tuple[SlurmJob, ...]]:
        """The nodes, all of them draining, and their jobs. A short outage of Slurm does not end a long wait."""
        for _ in range(_TRIES - 1):
            try:
                return self._observe(going)
            except GpuClusterError:
                time.sleep(_POLL)
        return self._observe(going)

    def _observe(self, going: Sequence[str]) -> tuple[list[SlurmNode], tuple[SlurmJob, ...]]:
        known = self._nodes()
        if self._close(going, known):
            known = self._nodes()
        names = [name for name in going if name in known]
        return [known[name] for name in names], self._jobs(names)

    def _close(self, going: Sequence[str], known: Mapping[str, SlurmNode]) -> bool:
        """Let them take no new jobs; True if that changed a node. A node that is out of service for another reason
        keeps that reason."""
        opened = [name for name in going if name in known and known[name].takes_jobs]
        if opened:
            self._update(opened, "state=drain")
            for name in opened:
                self._on_event(Event(EventKind.RESOURCE, f"node {name}", "draining", REASON))
        return bool(opened)

    def _clear(self, going: Sequence[str], known: Mapping[str, SlurmNode]) -> None:
        """End what runs there: Slurm requeues the jobs of a node that goes down, if they can be requeued."""
        self._close(going, known)
        jobs = self._jobs(going)
        if jobs:
            words = shlex.quote(REASON)
            ids = " ".join(shlex.quote(job.id) for job in jobs)
            # A job's terminal may be closed; then there is nobody to notify.
            self._ask(f"for job in {ids}; do sudo scontrol notify $job {words} || true; done")
            self._update(going, "state=down")
            warn(
                self._on_event,
                "slurm",
                f"jobs were requeued, or cancelled if they can't be: {'; '.join(map(str, jobs))}",
            )

    def _nodes(self) -> dict[str, SlurmNode]:
        return nodes_of(self._ask("sinfo --noheader --Node --format='%N|%T|%E'"))

    def _jobs(self, names: Sequence[str]) -> tuple[SlurmJob, ...]:
        if not names:
            return ()
        nodes = shlex.quote(",".join(names))
        shape = "--noheader --all --format='%A|%u|%L|%N'"
        return jobs_of(self._ask(f"squeue {shape} --states={','.join(JOB_ON_NODES)} --nodelist={nodes}"))

    def _update(self, names: Sequence[str], state: str) -> None:
        nodes = shlex.quote(",".join(names))
        reason = "" if state == "state=resume" else f" reason={shlex.quote(REASON)}"
        self._ask(f"sudo scontrol update nodename={nodes} {state}{reason}")

    def _ask(self, command: str) -> str:
        try:
            done = process.run(self._controller.ssh_argv(None, [command]), check=False, timeout=_TIMEOUT)
        except GpuClusterError as error:
            raise _silent(error.what) from error
        if done.returncode == _NOT_FOUND:
            return ""  # Slurm was never installed there, and no job ever ran.
        if done.returncode != 0:
            raise _silent(done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}")
        return done.stdout


def _silent(said: str) -> ToolError:
    return ToolError(
        f"Slurm on the controller gives no answer, and jobs may run on nodes that are to be removed: {said}",
        hint="Nothing was removed. See its state (gpucluster ssh -- sudo systemctl status slurmctld), fix the cause, "
        "then run: gpucluster apply. Or pass --drain-timeout 0 to remove the nodes without waiting for jobs",
    )


def _unfinished(going: Sequence[str], jobs: Sequence[SlurmJob], timeout: float) -> ToolError:
    running = "; ".join(map(str, jobs)) or "jobs that are being cleaned up"
    return ToolError(
        f"{', '.join(going)} can't be removed: after {timeout:.0f} s there is still {running}",
        hint="Nothing was removed, and these nodes take no new jobs. When the jobs have ended, run: gpucluster apply. "
        "To end them, use scancel, or pass --drain-timeout 0 to requeue or cancel them. To keep the nodes, add them to "
        "cluster.yml again and apply",
    )
