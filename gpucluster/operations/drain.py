"""Drain nodes in Slurm before they are removed, replaced or rebooted: they accept no new jobs, and we wait until the
jobs on them have ended.

Slurm stores the reason with which we drain a node. A later run resumes nodes with this reason, and leaves nodes alone
that an administrator has drained.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpucluster import cancellation, process
from gpucluster.controller.reactions.policy import NOTICE_S
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Event, EventKind, Sink, warn
from gpucluster.node_agent.rules.reasons import drained_by_apply, drained_by_rollout, drained_for_its_host
from gpucluster.operations.controller import ControllerConnection
from gpucluster.slurm.states import JOB_ON_NODES, SINFO_BUSY, SINFO_CLOSED, SINFO_RESERVED, sinfo_word
from gpucluster.waiting import wait_until

# Seconds to wait for jobs, by default.
DRAIN_TIMEOUT = 3600.0
_POLL = 2.0
_TIMEOUT = 60.0
_TRIES = 5
_NOT_FOUND = 127
# The sign behind the state of a node whose slurmd does not answer.
_SILENT = "*"
# Seconds that slurmd gets on a machine that has just been configured.
_ANSWERS_WITHIN = 120.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm reports it: its state without flags, the reason why it is out of service, and whether its slurmd
    answers."""

    state: str
    reason: str
    answers: bool = True

    @property
    def takes_jobs(self) -> bool:
        """Whether a new job may start there."""
        return self.state not in SINFO_CLOSED

    @property
    def busy(self) -> bool:
        """Whether a job runs there or is being cleaned up."""
        return self.state in SINFO_BUSY

    @property
    def reserved(self) -> bool:
        """Whether a reservation holds it now."""
        return self.state in SINFO_RESERVED

    @property
    def drained_by_rollout(self) -> bool:
        """Whether a rollout of an image has taken it out of service."""
        return not self.takes_jobs and drained_by_rollout(self.reason)

    @property
    def drained_by_us(self) -> bool:
        """Whether an earlier run has taken it out of service."""
        return not self.takes_jobs and drained_by_apply(self.reason)


@dataclass(frozen=True)
class SlurmJob:
    """A job that has nodes. `left` is the time that it may still run, `nodes` a hostlist, both as Slurm prints them."""

    id: str
    user: str
    left: str
    nodes: str

    def __str__(self) -> str:
        return f"job {self.id} of {self.user} on {self.nodes} ({self.left} left)"


def nodes_of(output: str) -> dict[str, SlurmNode]:
    """Nodes by name, from lines `name|state|reason` of sinfo; a node of two partitions is listed twice."""
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") > 1]
    return {name: SlurmNode(sinfo_word(state), reason.strip(), _SILENT not in state) for name, state, reason in rows}


def jobs_of(output: str) -> tuple[SlurmJob, ...]:
    """Jobs, from lines `id|user|time left|nodes` of squeue."""
    rows = [line.split("|", 3) for line in output.splitlines() if line.count("|") > 2]  # noqa: PLR2004
    return tuple(SlurmJob(*row) for row in rows)


class Draining:
    """Drains and resumes Slurm nodes, by commands on the controller.

    Args:
        required: cluster.yml has Slurm. Without it, a Slurm that gives no answer is none.
    """

    def __init__(self, controller: ControllerConnection, on_event: Sink, *, required: bool = True) -> None:
        self._controller = controller
        self._on_event = on_event
        self._required = required

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        """Drain these nodes, and wait until no job is on them. Names that Slurm does not know are skipped.

        Args:
            reasons: why, by the node's name: one of `node_agent.rules.reasons`.
            timeout: seconds to wait. With 0 there is no wait: jobs are requeued, or cancelled if they can't be
                requeued; and if Slurm does not answer, that is only a warning.

        Raises:
            ToolError: jobs still run there (the text names them), or Slurm does not answer. The nodes stay drained.
        """
        try:
            nodes = self._nodes_if_any()
            known = {name: reasons[name] for name in sorted(reasons) if name in nodes}
            if known and timeout > 0:
                self._wait(known, timeout)
            elif known:
                self._end_jobs(known, nodes)
        except GpuClusterError as error:
            if timeout > 0:
                raise
            warn(self._on_event, "slurm", f"nodes are removed or changed without draining them in Slurm: {error.what}")

    def all_jobs(self, *, timeout: float) -> tuple[SlurmJob, ...]:
        """The jobs that have nodes, of all users; empty without a Slurm. Reads only, and asks once.

        Args:
            timeout: seconds.

        Raises:
            ToolError: Slurm does not answer.
        """
        return jobs_of(self._query(_squeue(), timeout))

    def nodes(self) -> dict[str, SlurmNode]:
        """The nodes by name, elastic ones without an instance included; empty without a Slurm.

        Raises:
            ToolError: Slurm does not answer.
        """
        return self._nodes_if_any()

    def begin(self, reasons: Mapping[str, str]) -> None:
        """Drain those of these nodes that accept jobs, and do not wait. Names that Slurm does not know are skipped.

        Args:
            reasons: why, by the node's name: one of `slurm.reasons`.

        Raises:
            ToolError: Slurm does not answer.
        """
        self._drain(reasons, self._nodes_if_any())

    def jobs(self, names: Collection[str]) -> tuple[SlurmJob, ...]:
        """The jobs that hold these nodes. A short outage of Slurm is not an error.

        Raises:
            ToolError: Slurm does not answer.
        """
        return self._with_retries(lambda: self._jobs(sorted(names)))

    def resume(self, names: Collection[str]) -> None:
        """Resume the nodes among these that an earlier run drained. If Slurm does not answer, none is resumed."""
        try:
            nodes = self._nodes()
            drained = [name for name in names if name in nodes and nodes[name].drained_by_us]
            if drained:
                self._update(drained, "state=resume")
        except GpuClusterError:
            return
        for name in drained:
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "resumed", "it is in cluster.yml again"))

    def release(self, names: Collection[str]) -> dict[str, str]:
        """Let the nodes among these into service that a rollout has drained, and wait until they take jobs.

        Returns:
            why one takes none, by its name.

        Raises:
            ToolError: Slurm does not answer.
        """
        nodes = self._with_retries(self._nodes)
        drained = [name for name in sorted(names) if name in nodes and nodes[name].drained_by_rollout]
        if drained:
            self._update(drained, "state=resume")
        closed: dict[str, str] = {}

        def serve() -> bool:
            nonlocal closed
            now = self._with_retries(self._nodes)
            closed = {
                name: now[name].reason if name in now and not now[name].takes_jobs else "its slurmd does not answer"
                for name in names
                if name not in now or not now[name].takes_jobs or not now[name].answers
            }
            return not closed

        wait_until(serve, _ANSWERS_WITHIN, _POLL)
        for name in drained:
            if name not in closed:
                self._on_event(Event(EventKind.RESOURCE, f"node {name}", "resumed"))
        return closed

    def hold(self, reasons: Mapping[str, str]) -> None:
        """Keep these nodes out of service for these reasons, whatever has drained them before. Names that Slurm does
        not know are skipped.

        Raises:
            ToolError: Slurm does not answer.
        """
        known = self._with_retries(self._nodes)
        held = {name: reasons[name] for name in sorted(reasons) if name in known}
        self._close(held, "drain")
        for name, reason in held.items():
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "draining", reason))

    def end_hold(self, names: Collection[str]) -> None:
        """Let the nodes among these into service that `hold` keeps out of it because of their physical host.

        Raises:
            ToolError: Slurm does not answer.
        """
        known = self._with_retries(self._nodes)
        held = [name for name in sorted(names) if name in known and drained_for_its_host(known[name].reason)]
        if held:
            self._update(held, "state=resume")

    def remove(self, names: Collection[str]) -> None:
        """Nothing: Slurm's nodes are those of slurm.conf, which the next step writes."""

    def await_answers(self, names: Collection[str]) -> None:
        """Wait until slurmd answers on these nodes, which have booted: Slurm knew another machine under the name, or an
        earlier boot. If it does not answer in time, or Slurm does not, the checks report it."""

        def all_answer() -> bool:
            nodes = self._with_retries(self._nodes)
            return all(nodes[name].answers for name in names if name in nodes)

        with suppress(GpuClusterError):
            wait_until(all_answer, _ANSWERS_WITHIN, _POLL)

    def _nodes_if_any(self) -> dict[str, SlurmNode]:
        try:
            return self._nodes()
        except GpuClusterError:
            if self._required:
                raise
            return {}

    def _wait(self, reasons: Mapping[str, str], timeout: float) -> None:
        jobs: tuple[SlurmJob, ...] = ()
        reported: tuple[str, ...] = ()

        def drained() -> bool:
            nonlocal jobs, reported
            nodes, jobs = self._observe_with_retries(reasons)
            if not jobs and not any(node.busy or node.takes_jobs for node in nodes):
                return True
            ids = tuple(job.id for job in jobs)
            if ids != reported:
                reported = ids
                waiting_for = "; ".join(map(str, jobs)) or "a job is being cleaned up"
                self._on_event(Event(EventKind.LOG, "slurm", "waiting", f"before nodes are changed: {waiting_for}"))
            return False

        if not wait_until(drained, timeout, _POLL):
            raise _unfinished(tuple(reasons), jobs, timeout)
        for name in reasons:
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "drained"))

    def _observe_with_retries(self, reasons: Mapping[str, str]) -> tuple[list[SlurmNode], tuple[SlurmJob, ...]]:
        """The nodes, all of them draining, and their jobs. A short outage of Slurm does not end a long wait."""
        return self._with_retries(lambda: self._observe(reasons))

    @staticmethod
    def _with_retries(ask: Callable[[], _T]) -> _T:
        for _ in range(_TRIES - 1):
            try:
                return ask()
            except GpuClusterError:
                cancellation.sleep(_POLL)
        return ask()

    def _observe(self, reasons: Mapping[str, str]) -> tuple[list[SlurmNode], tuple[SlurmJob, ...]]:
        nodes = self._nodes()
        if self._drain(reasons, nodes):
            nodes = self._nodes()
        present = [name for name in reasons if name in nodes]
        return [nodes[name] for name in present], self._jobs(present)

    def _drain(self, reasons: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> bool:
        """Drain the nodes that accept jobs; True if there were any. A node that is out of service for another reason
        keeps that reason."""
        accepting = {name: reason for name, reason in reasons.items() if name in nodes and nodes[name].takes_jobs}
        self._close(accepting, "drain")
        for name, reason in accepting.items():
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "draining", reason))
        return bool(accepting)

    def _end_jobs(self, reasons: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> None:
        """Drain the nodes and set them down if they have jobs: Slurm requeues the jobs that can be requeued."""
        self._drain(reasons, nodes)
        jobs = self._jobs(tuple(reasons))
        if jobs:
            message = shlex.quote("; ".join(sorted(set(reasons.values()))))
            ids = " ".join(shlex.quote(job.id) for job in jobs)
            # A job without an open terminal can't be notified. A line arrives after the command, and a job that has
            # ended takes none.
            lines = f"for job in {ids}; do sudo scontrol notify $job {message} || true; done"
            self._query(f"{lines}; sleep {NOTICE_S:g}")
            self._close(reasons, "down")
            warn(
                self._on_event,
                "slurm",
                f"jobs were requeued, or cancelled if they can't be: {'; '.join(map(str, jobs))}",
            )

    def _close(self, reasons: Mapping[str, str], state: str) -> None:
        for reason in sorted(set(reasons.values())):
            names = [name for name in reasons if reasons[name] == reason]
            self._update(names, f"state={state} reason={shlex.quote(reason)}")

    def _nodes(self) -> dict[str, SlurmNode]:
        return nodes_of(self._query("sinfo --noheader --Node --format='%N|%T|%E'"))

    def _jobs(self, names: Sequence[str]) -> tuple[SlurmJob, ...]:
        if not names:
            return ()
        return jobs_of(self._query(f"{_squeue()} --nodelist={shlex.quote(','.join(names))}"))

    def _update(self, names: Sequence[str], change: str) -> None:
        nodes = shlex.quote(",".join(names))
        self._query(f"sudo scontrol update nodename={nodes} {change}")

    def _query(self, command: str, timeout: float = _TIMEOUT) -> str:
        try:
            result = process.run(self._controller.ssh_argv(None, [command]), check=False, timeout=timeout)
        except GpuClusterError as error:
            raise _no_answer(error.what) from error
        if result.returncode == _NOT_FOUND:
            return ""  # Slurm was never installed there, and no job ever ran.
        if result.returncode != 0:
            raise _no_answer(result.stderr.strip().rpartition("\n")[2] or f"status {result.returncode}")
        return result.stdout


def _squeue() -> str:
    """Lists the jobs that have nodes, for `jobs_of`."""
    return f"squeue --noheader --all --format='%A|%u|%L|%N' --states={','.join(JOB_ON_NODES)}"


def _no_answer(reason: str) -> ToolError:
    return ToolError(
        "Slurm on the controller gives no answer, and jobs may run on nodes that are to be removed or changed: "
        f"{reason}",
        hint="Nothing was changed. See its state (gpucluster ssh -- sudo systemctl status slurmctld), fix the cause, "
        "then run: gpucluster apply. Or pass --drain-timeout 0 to go on without waiting for jobs",
    )


def _unfinished(names: Sequence[str], jobs: Sequence[SlurmJob], timeout: float) -> ToolError:
    running = "; ".join(map(str, jobs)) or "jobs that are being cleaned up"
    return ToolError(
        f"{', '.join(names)} can't be removed or changed: after {timeout:.0f} s there is still {running}",
        hint="Nothing was removed, and these nodes accept no new jobs. When the jobs have ended, run the same command "
        "again. To end them, use scancel, or pass --drain-timeout 0 to requeue or cancel them. To keep the nodes, run "
        "gpucluster apply with them in cluster.yml",
    )
