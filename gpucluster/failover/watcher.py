"""The loop: asks the controller again and again, decides, and notes what it has seen for the other hosts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpucluster.errors import GpuClusterError
from gpucluster.failover.decide import Decision, Evidence, Silence, Verdict, decide, quorum
from gpucluster.failover.probes import ask_witnesses, controller_answers
from gpucluster.failover.settings import WatchSettings
from gpucluster.node_agent import durable_file
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.standby import keeping, watching

#: Seconds between two rounds, without what the probes take; and with it.
PAUSE_SECONDS = 2.0
ROUND_SECONDS = PAUSE_SECONDS + watching.CONNECT_SECONDS
# While the controller answers, others are asked only whether they could be asked.
_READINESS_SECONDS = 300.0
# After an attempt that failed, or that something forbids.
_BACKOFF_SECONDS = 5.0
log = logging.getLogger("gpucluster.failover")


class Steps(Protocol):
    """What moves the service (`Promotion`)."""

    def state(self) -> str:
        """The lifecycle state of the instance in service."""

    def holder(self) -> str:
        """The instance that has the volume."""

    def held_by(self) -> str:
        """The run that holds the cluster."""

    def carry_out(self, still_lost: Callable[[], bool]) -> bool:
        """Go on in the place of the controller."""


@dataclass
class Watcher:
    """Watches the controller of one cluster.

    Args:
        probe: whether the controller answers, by probe. `ask`: whether others reach it, by witness.
        clock: seconds by a clock that does not jump. `wall`: seconds of the epoch.
        root: of the host's file system; another one for tests.
    """

    settings: WatchSettings
    steps: Steps
    probe: Callable[[WatchSettings], dict[str, bool]] = controller_answers
    ask: Callable[[WatchSettings], dict[str, bool | None]] = ask_witnesses
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], object] = time.sleep
    root: Path = Path("/")
    _silence: Silence = field(default_factory=Silence)
    _ready: tuple[bool, str] = (False, "not tried yet")
    _ready_at: float | None = None
    _said: str = ""
    # Why it goes on, once it has the volume and a service has not started.
    _unfinished: str = ""

    def run(self) -> None:
        """Watch until this host is the controller."""
        while watching.is_passive(self.root) or self._unfinished:
            verdict = self.round()
            self.sleep(_BACKOFF_SECONDS if verdict.decision is Decision.WAIT else PAUSE_SECONDS)

    def round(self) -> Verdict:
        """Ask once, and do what follows. Returns it."""
        if self._unfinished:
            # This host has the volume and the address, and would answer itself.
            verdict = self._go_on(self._unfinished, lambda: self.steps.holder() == self.settings.own)
            self._note(False, verdict.reason)
            return verdict
        was_silent = self._silence.since is not None
        now = self._look()
        if self._silence.since is None:
            if was_silent:
                # A shutdown that was announced is over.
                (self.root / watching.PAUSE.lstrip("/")).unlink(missing_ok=True)
            if self._ready_at is None or now - self._ready_at >= _READINESS_SECONDS:
                self._ready, self._ready_at = self._readiness(), self.clock()
            self._note(*self._ready)
            return Verdict(Decision.WATCH)
        verdict = self._decided(None)
        if verdict.decision is Decision.ASK:
            evidence, held_by, problem = self._evidence()
            verdict = self._decided(evidence, held_by, problem)
        if verdict.decision is Decision.GO_ON:
            verdict = self._go_on(verdict.reason, self._still_lost)
        self._note(self._ready[0], verdict.reason)
        return verdict

    def _look(self) -> float:
        answers = self.probe(self.settings)
        now = self.clock()
        self._silence = self._silence.after(answers, now, ROUND_SECONDS)
        return now

    def _decided(self, evidence: Evidence | None, held_by: str = "", problem: str = "") -> Verdict:
        verdict = decide(
            self._silence,
            evidence,
            now=self.clock(),
            patience=self.settings.patience,
            own=self.settings.own,
            paused_seconds=watching.paused_seconds(self.root, self.wall),
            held_by=held_by,
        )
        return Verdict(verdict.decision, f"{verdict.reason}: {problem}") if problem else verdict

    def _evidence(self) -> tuple[Evidence, str, str]:
        """What others know, the run that holds the cluster, and why the cloud does not answer."""
        try:
            state, holder, held_by, problem = self.steps.state(), self.steps.holder(), self.steps.held_by(), ""
        except GpuClusterError as error:
            return Evidence({}), "", error.what
        sees = {} if holder == self.settings.own else self.ask(self.settings)
        return Evidence(sees, state, holder), held_by, problem

    def _go_on(self, reason: str, still_lost: Callable[[], bool]) -> Verdict:
        settings, begin = self.settings, self.clock()
        silent = self._silence.seconds(begin)
        self._say(logging.WARNING, f"the controller is lost ({reason}): {settings.own_name} goes on in its place")
        try:
            done = self.steps.carry_out(still_lost)
        except AgentError as error:
            self._unfinished = reason
            return Verdict(Decision.WAIT, f"{settings.own_name} has the volume, and could not go on: {error}")
        except (GpuClusterError, OSError) as error:
            text = error.what if isinstance(error, GpuClusterError) else str(error)
            return Verdict(Decision.WAIT, f"{settings.own_name} could not go on: {text}")
        self._unfinished = ""
        if not done:
            return Verdict(Decision.WATCH, "the controller answers again")
        self._record(reason, silent + self.clock() - begin)
        return Verdict(Decision.GO_ON, reason)

    def _still_lost(self) -> bool:
        self._look()
        return self._silence.since is not None

    def _readiness(self) -> tuple[bool, str]:
        """Whether this host could go on now, and why not."""
        evidence, _, problem = self._evidence()
        if problem:
            return False, problem
        if evidence.holder != self.settings.other:
            return False, f"the volume is on {evidence.holder or 'no host'}"
        answering = sum(sees is not None for sees in evidence.sees.values())
        if evidence.sees and answering < quorum(len(evidence.sees)):
            silent = ", ".join(sorted(name for name, sees in evidence.sees.items() if sees is None))
            return False, f"these hosts can't be asked about the controller: {silent}"
        return True, ""

    def _note(self, ready: bool, reason: str) -> None:
        self._say(logging.INFO, reason or "the controller answers")
        document = json.dumps({"at": self.wall(), "ready": ready, "reason": reason})
        file = self.root / watching.STATUS.lstrip("/")
        durable_file.replace(file, document, mode=0o600, durable=False)

    def _record(self, reason: str, seconds: float) -> None:
        """What the next apply, and the metrics of the new controller, have of it."""
        record = {"at": self.wall(), "reason": reason, "seconds": round(seconds, 1), "host": self.settings.own_name}
        durable_file.replace(self.root / watching.RECORD.lstrip("/"), json.dumps(record), mode=0o600)
        keeping.note_failover(self.wall(), self.root)
        text = f"{self.settings.own_name} is the controller, {seconds:.0f} s after the last answer of the one before it"
        self._say(logging.WARNING, text)

    def _say(self, level: int, text: str) -> None:
        """Log what is new."""
        # The number of seconds changes in each round.
        same = "".join(each for each in text if not each.isdigit())
        if same != self._said:
            self._said = same
            log.log(level, text)
