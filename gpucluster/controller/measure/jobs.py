"""Runs jobs: each as soon as none of the others uses its nodes, never longer than it may, and none after us.

A job is an srun of a user. What it prints comes to this process, so nothing is written on a share or on a node. Only so
much of it is kept; a program that prints more is ended. The name of a job finds it when this process was killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Sequence
from typing import Any

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.measure import launch, slurm
from gpucluster.controller.measure.request import Request
from gpucluster.controller.measure.result import ENDED, LOST, MOST_OUTPUT, NOT_STARTED, TOO_LONG, TOO_MUCH, startable
from gpucluster.controller.rules import srun_messages
from gpucluster.controller.rules.slurm_jobs import WAITING
from gpucluster.controller.rules.srun_messages import End
from gpucluster.node_agent import programs
from gpucluster.node_agent.accounts import Account, environment
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.rules import scrubbing

#: So many srun at the same time; further jobs wait.
_MOST_JOBS = 64
_TICK = 1.0
#: Seconds beyond the time limit of a job: Slurm looks once a minute, and kills 30 s after it has asked.
_GRACE_S = 150.0
#: Seconds for a cancelled job to end.
_END_S = 90.0
_LOOKED_AT = 64 << 10


class _Running:
    """A job whose srun runs."""

    def __init__(self, request: Request, name: str, child: programs.Running[bytes]) -> None:
        assert child.stdout is not None
        self.request, self.name, self.child, self.stdout = request, name, child, child.stdout
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.output = bytearray()
        self.outcome = ""
        self.why = ""

    def read(self) -> bool:
        """Read what it has printed; False at the end."""
        chunk = os.read(self.stdout.fileno(), 1 << 20)
        if not self.outcome:
            self.output += chunk[: MOST_OUTPUT - len(self.output)]
            if len(self.output) >= MOST_OUTPUT:
                self.outcome, self.why = TOO_MUCH, f"it printed more than {MOST_OUTPUT} bytes"
        return bool(chunk)

    def result(self) -> dict[str, Any]:
        """The answer."""
        status = self.child.wait()
        outcome, why = self.outcome or ENDED, self.why
        if outcome == ENDED and status != 0:
            text = bytes(self.output[-_LOOKED_AT:]).decode(errors="replace")
            end = srun_messages.end(text) or srun_messages.OF_STATE.get(slurm.state(self.name))
            if end is End.TIME_OVER:
                outcome, why = TOO_LONG, f"it did not end within {self.request.minutes} minutes"
            elif end is not None:
                outcome, why = (NOT_STARTED if end is End.NO_STEP else LOST), f"{end.value}{_last_words(text)}"
        kept = self.output[:_LOOKED_AT] if outcome == TOO_MUCH else self.output
        return {
            "id": self.request.id, "outcome": outcome, "why": why, "status": status,
            "seconds": round(time.monotonic() - (self.started or self.submitted), 1),
            "output": scrubbing.scrubbed_text(kept.decode(errors="replace")),
        }  # fmt: skip


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("srun: ")]
    return f" ({lines[-1]})" if lines else ""


class MeasurementJobs:
    """Runs the jobs of one session.

    Args:
        owner: the user whose jobs they are.
        session: makes their names unique.
        start_s: seconds after which a job that waits for its nodes is given up.
    """

    def __init__(self, owner: Account, session: str, start_s: float, talk: RequestChannel) -> None:
        self._owner = owner
        self._prefix = f"{launch.PREFIX}{session}-"
        self._start_s = start_s
        self._talk = talk
        self._count = 0

    def nodes(self) -> list[str]:
        """The nodes: lines `name|state|reason`.

        Raises:
            Failed: Slurm does not answer.
        """
        return slurm.nodes()

    def run(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Run them to their end; the answers are in the order in which they ended.

        Raises:
            Disconnected: the caller no longer waits for the answer; the jobs are cancelled.
        """
        waiting, running, answers = list(requests), dict[str, _Running](), list[dict[str, Any]]()
        with selectors.DefaultSelector() as watch:
            watch.register(self._talk.source, selectors.EVENT_READ, None)
            try:
                looked = 0.0
                while waiting or running:
                    for request in startable(waiting, [job.request for job in running.values()], _MOST_JOBS):
                        waiting.remove(request)
                        job = self._start(request)
                        running[job.name] = job
                        watch.register(job.stdout, selectors.EVENT_READ, job)
                    for job in self._ended(watch):
                        del running[job.name]
                        answers.append(job.result())
                        self._talk.say(progress={key: answers[-1][key] for key in ("id", "outcome", "seconds")})
                    if running and time.monotonic() - looked > _TICK:
                        self._watch_over(running)
                        looked = time.monotonic()
            except BaseException:
                self._abandon(list(running.values()))
                raise
        return answers

    def _start(self, request: Request) -> _Running:
        self._count += 1
        name = f"{self._prefix}{self._count}"
        owner = self._owner
        child = programs.start(
            launch.argv(request, name), environment={**environment(owner), **launch.settings(request)},
            uid=owner.uid, gid=owner.gid, groups=owner.groups,
        )  # fmt: skip
        return _Running(request, name, child)

    def _ended(self, watch: selectors.BaseSelector) -> list[_Running]:
        ended = []
        for key, _events in watch.select(_TICK):
            if key.data is None:
                self._talk.listen()
            elif not key.data.read():
                watch.unregister(key.fileobj)
                ended.append(key.data)
        return ended

    def _watch_over(self, running: dict[str, _Running]) -> None:
        """Cancel jobs that do not start, do not end, or print without end."""
        try:
            rows = slurm.jobs(self._prefix)
            for job in running.values():
                self._look_at(job, rows.get(job.name))
            slurm.cancel([rows[name].id for name, job in running.items() if job.outcome and name in rows])
        except Failed:
            return  # Slurm's own time limit holds, and srun reports what happens to its job
        for job in running.values():
            if job.outcome and job.name not in rows:
                job.child.terminate()  # it waits for something else, or ends in this moment

    def _look_at(self, job: _Running, row: slurm.JobRow | None) -> None:
        now = time.monotonic()
        if job.started is None and row is not None and row.state not in WAITING:
            job.started = now
        if job.outcome:
            return
        if job.started is None and now - job.submitted > self._start_s:
            reason = f": {row.reason}" if row is not None and row.reason not in ("", "None") else ""
            job.outcome, job.why = NOT_STARTED, f"it did not start within {self._start_s:g} s{reason}"
        elif job.started is not None and now - job.started > job.request.minutes * 60 + _GRACE_S:
            job.outcome, job.why = TOO_LONG, f"it did not end within {job.request.minutes} minutes"

    def _abandon(self, running: Sequence[_Running]) -> None:
        """Cancel everything; no signal or error may leave a job behind."""
        with contextlib.suppress(AgentError, Disconnected):
            slurm.cancel_all(self._prefix, _END_S)
        for job in running:
            programs.end(job.child, _END_S)
