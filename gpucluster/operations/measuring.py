"""Level `full` of `gpucluster verify`: measures the nodes of pools, and judges the results.

With Slurm by jobs of the first user of users.people, because root submits none; with Kubernetes by pods. One
conversation with the controller lasts for the whole measurement: `gpucluster-agent measure` there holds a lock as long,
and ends its jobs when this process is gone. What was measured is judged by `gpucluster.measuring`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from gpucluster import process
from gpucluster.errors import GpuClusterError, ProcessError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.measuring import checks, results
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.model import Finding, Missing, Status
from gpucluster.node_agent.rules.devices import GPU_RESOURCES
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteConversation
from gpucluster.spec import ClusterSpec
from gpucluster.text import count

COMMAND = "sudo -n /usr/local/bin/gpucluster-agent measure --scheduler={scheduler} serve"
FULL = "full"
#: Seconds for which a job may wait for nodes that were idle when it was submitted; a pod may wait for its image, too.
_START_S, _PULL_S = 120.0, 900.0
#: Pods have nothing of their node.
_NO_IMAGE = "verify.nccl_image names no container image with nccl-tests"
#: Seconds for the controller's program to cancel its jobs when we go.
_END_S = 120.0

#: Keeps an output as evidence: its name and its text, which has no secrets.
Keep = Callable[[str, str], None]


class MeasuringSession(Protocol):
    """A conversation with the controller's program."""

    def nodes(self) -> Mapping[str, str]:
        """Every node's state, as sinfo prints it, with signs; or as `gpucluster.controller.measure.pods` has it."""

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, results.JobAnswer | Missing]:
        """Run jobs to their end; each answer by the id of its job. A job without an answer is missing."""

    def baseline(self) -> Mapping[str, Any]:
        """What the cluster reached before."""

    def record(self, entries: Mapping[str, Any]) -> None:
        """Add to that."""


class Measuring:
    """Measures pools.

    Args:
        open_session: begins a conversation that lasts for a `with`; by default with the controller.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        controller: ControllerConnection,
        on_event: Sink,
        open_session: Callable[[], AbstractContextManager[MeasuringSession]] | None = None,
    ) -> None:
        self._spec = spec
        self._controller = controller
        self._on_event = on_event
        self._open = open_session or self._connect

    def run(
        self,
        nodes_by_pool: Mapping[str, Sequence[str]],
        level: str,
        *,
        keep: Keep = lambda _name, _text: None,
        record_baseline: bool = False,
    ) -> tuple[Finding, ...]:
        """Measure these nodes, as far as they are idle.

        Args:
            level: `full`; at any other level nothing is measured.
            keep: is called with each job's output.
            record_baseline: what the pools reach becomes what they are compared with, where nothing is published.

        Raises:
            LockedError: another run measures; the text names it.
            ToolError: the controller can't be reached, or the scheduler does not answer.
        """
        kubernetes = self._spec.scheduler == "kubernetes"
        if level != FULL or not (self._spec.slurm.enabled or kubernetes):
            return ()
        pools = [(self._pool(name, len(nodes)), list(nodes)) for name, nodes in nodes_by_pool.items() if nodes]
        if kubernetes and not self._spec.verify.nccl_image:
            return _without_image(pools)
        if not any(check.applies(pool, "") == "" for pool, _ in pools for check in checks.CHECKS):
            # All of it is skipped, with the reason.
            return _unmeasured(pools, "")
        if not (kubernetes or self._spec.users.people):
            return _unmeasured(pools, "users.people has no user whose jobs could measure")
        settings = self._spec.verify
        tools = Tools(settings.nccl_tests, settings.nccl_image, settings.mpi)
        findings: list[Finding] = []
        with self._open() as session:
            states, before = session.nodes(), dict(session.baseline())
            for pool, nodes in pools:
                run = _Runner(pool.name, session, keep, self._on_event)
                survey = Survey(pool, nodes, tools, states, before, run)
                survey.measure()
                if record_baseline:
                    new = survey.entries(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
                    session.record(new)
                    before |= new
                findings += survey.findings(before)
        return tuple(findings)

    def _pool(self, name: str, nodes: int) -> MeasuredPool:
        pool = self._spec.pools[name]
        emulated = self._spec.cloud.traits.hardware_emulated
        resource = ""
        if self._spec.scheduler == "kubernetes" and pool.hardware.gpus:
            resource = GPU_RESOURCES[pool.hardware.gpu_vendor]
        divided = bool(pool.gpus.mig)
        claimed = name in self._spec.claiming_pools
        return MeasuredPool(
            name, pool.partition or name, pool.hardware, pool.uses_rdma, emulated, nodes, resource, divided, claimed
        )  # fmt: skip

    @contextmanager
    def _connect(self) -> Iterator[MeasuringSession]:
        kubernetes = self._spec.scheduler == "kubernetes"
        argv = self._controller.ssh_argv(None, [COMMAND.format(scheduler=self._spec.scheduler)])
        with process.ProcessConversation(argv, end_s=_END_S) as talk:
            session = RemoteSession(talk, self._on_event)
            user = "" if kubernetes else self._spec.users.people[0].name
            session.begin(user, start_s=_PULL_S if kubernetes else _START_S)
            yield session


def _unmeasured(pools: Sequence[tuple[MeasuredPool, Sequence[str]]], why: str) -> tuple[Finding, ...]:
    """The findings where nothing is measured: skipped, or unknown because of `why`."""
    surveys = [Survey(pool, nodes, Tools(), {}, {}, lambda _what, _jobs: {}) for pool, nodes in pools]
    findings = [finding for survey in surveys for finding in survey.findings()]
    return tuple(replace(each, message=why) if each.status is Status.UNKNOWN and why else each for each in findings)


def _without_image(pools: Sequence[tuple[MeasuredPool, Sequence[str]]]) -> tuple[Finding, ...]:
    """The findings where pods have nothing to run: all skipped, where they could be measured with the reason."""
    return tuple(
        replace(each, status=Status.SKIP, message=_NO_IMAGE) if each.status is Status.UNKNOWN else each
        for each in _unmeasured(pools, "")
    )


class RemoteSession:
    """A conversation with `gpucluster-agent measure serve`."""

    def __init__(self, talk: process.ProcessConversation, on_event: Sink) -> None:
        self._ask = RemoteConversation(talk).ask
        self._on_event = on_event
        self._lost = ""

    def begin(self, user: str, *, start_s: float = _START_S) -> None:
        """Take the lock, and cancel what an earlier measurement left.

        Args:
            user: whose jobs they are; "" where they have no user.
            start_s: seconds that a job may wait.

        Raises:
            LockedError: another run measures.
            ToolError: it does not work.
        """
        who = f"a run on {socket.gethostname()}"
        try:
            cancelled = self._ask("begin", user=user, who=who, start_s=start_s)["cancelled"]
        except ProcessError as error:
            hint = "Its program may be of another version than this one. Run: gpucluster apply"
            raise ToolError(f"the controller does not measure: {error.what}", hint=hint) from None
        if cancelled:
            listed = ", ".join(map(str, cancelled))
            info(self._on_event, "verify", f"jobs that a killed measurement left were cancelled: {listed}")

    def nodes(self) -> Mapping[str, str]:
        """See MeasuringSession."""
        lines: list[str] = self._ask("nodes")
        rows = [line.split("|") for line in lines if line.count("|") > 1]
        return {row[0]: row[1] for row in rows}

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, results.JobAnswer | Missing]:
        """See MeasuringSession. A connection that is lost gives no answers, now and from now on."""
        if not self._lost:
            try:
                answers: list[dict[str, Any]] = self._ask("run", jobs=[dict(job) for job in jobs])
                by_job = {str(answer["id"]): results.JobAnswer.of(answer) for answer in answers}
                return {str(job["id"]): by_job.get(str(job["id"]), Missing("it has no result")) for job in jobs}
            except GpuClusterError as error:
                self._lost = f"the measurement ended: {error.what}"
                warn(self._on_event, "verify", self._lost)
        return {str(job["id"]): Missing(self._lost) for job in jobs}

    def baseline(self) -> Mapping[str, Any]:
        """See MeasuringSession."""
        entries: dict[str, Any] = self._ask("baseline.read")
        return entries

    def record(self, entries: Mapping[str, Any]) -> None:
        """See MeasuringSession."""
        self._ask("baseline.write", baseline=dict(entries))


class _Runner:
    """Runs the jobs of a pool, reports its steps, and keeps what they print."""

    def __init__(self, pool: str, session: MeasuringSession, keep: Keep, on_event: Sink) -> None:
        self._pool, self._session, self._keep, self._on_event = pool, session, keep, on_event
        self._count = 0

    def __call__(self, what: str, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, results.JobAnswer | Missing]:
        info(self._on_event, "verify", f"pool {self._pool}: {what} ({count(len(jobs), 'measurement')})")
        answers = self._session.run(jobs)
        for job in jobs:
            answer = answers[str(job["id"])]
            self._count += 1
            nodes = job["nodes"]
            name = f"{self._pool}-{self._count:04}-{job['kind']}-{nodes[0]}-to-{nodes[-1]}.txt"
            if isinstance(answer, Missing):
                self._keep(name, f"# {json.dumps(dict(job))}\n# {answer.reason}\n")
                continue
            if answer.why:
                warn(self._on_event, "verify", f"{', '.join(nodes)}: not measured: {answer.why}")
            self._keep(name, f"# {json.dumps(dict(job))}\n# {answer.outcome} {answer.why}\n{answer.output}")
        return answers
