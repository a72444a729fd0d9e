"""When the standby goes on in the place of the controller. Pure.

The controller counts as lost only while all of this is true: nothing of it has answered for the whole patience; no
other host reaches it, and enough of them were asked, or the cloud states that its instance does not run; no shutdown
was announced; and no run of an operator holds the cluster. A host that is slow answers a connection nevertheless:
its kernel accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gpucluster.oci.states import GONE, LifecycleState

#: Rounds without an answer, at least: one lost packet is none.
LEAST_ROUNDS = 3
# A pause of more rounds than this between two of them: this host stood still, and the other one was not silent.
_STOOD_STILL = 4.0

#: An instance in one of these states does not serve, and does not begin to by itself.
ENDED = frozenset({*GONE, LifecycleState.STOPPING, LifecycleState.STOPPED})


class Decision(StrEnum):
    """What the standby does now."""

    WATCH = "watch"  # the controller answers, or has not been silent for long enough
    ASK = "ask"  # it is silent: ask other hosts and the cloud
    WAIT = "wait"  # it may be lost, and something forbids to go on
    GO_ON = "go on"  # stop it in the cloud, and go on in its place


@dataclass(frozen=True)
class Silence:
    """For how long nothing of the controller has answered.

    Args:
        since: the clock of the first round without any answer; None while it answers.
        rounds: how many rounds were without an answer.
        last: the clock of the last round; None before the first one.
    """

    since: float | None = None
    rounds: int = 0
    last: float | None = None

    def after(self, answers: Mapping[str, bool], now: float, interval: float) -> Silence:
        """The silence after one more round.

        Args:
            answers: by probe, whether it was answered.
            now: seconds by a clock that does not jump.
            interval: seconds between two rounds.
        """
        if any(answers.values()) or not answers:
            return Silence(last=now)
        stood_still = self.last is not None and now - self.last > _STOOD_STILL * interval
        if self.since is None or stood_still:
            return Silence(now, 1, now)
        return replace(self, rounds=self.rounds + 1, last=now)

    def seconds(self, now: float) -> float:
        """For how long it has lasted."""
        return 0.0 if self.since is None else max(0.0, now - self.since)

    def lasts(self, patience: float, now: float) -> bool:
        """Whether it has lasted long enough to ask others."""
        return self.since is not None and self.rounds >= LEAST_ROUNDS and self.seconds(now) >= patience


@dataclass(frozen=True)
class Evidence:
    """What others know of the controller.

    Args:
        sees: by witness, whether it reaches the controller; None if the witness does not answer.
        state: the lifecycle state of the controller's instance; empty if the cloud does not answer.
        holder: which instance has the volume with the state; empty if none has it, None if the cloud does not answer.
    """

    sees: Mapping[str, bool | None]
    state: str = ""
    holder: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A decision, and its reason as a sentence for an operator."""

    decision: Decision
    reason: str = ""


def quorum(witnesses: int) -> int:
    """How many of the witnesses must state that they do not reach the controller: more than half."""
    return witnesses // 2 + 1


def decide(
    silence: Silence,
    evidence: Evidence | None,
    *,
    now: float,
    patience: float,
    own: str,
    paused_seconds: float = 0.0,
    held_by: str = "",
) -> Verdict:
    """What to do.

    Args:
        evidence: None until others were asked.
        now: as in `Silence.after`.
        patience: seconds of silence before others are asked.
        own: the OCID of this instance.
        paused_seconds: for how long an announced shutdown still counts.
        held_by: the run that holds the cluster; empty if none does, or if it is this program.
    """
    if not silence.lasts(patience, now):
        is_silent, seconds = silence.since is not None, silence.seconds(now)
        return Verdict(
            Decision.WATCH, f"nothing of the controller has answered for {seconds:.0f} s" if is_silent else ""
        )
    if paused_seconds > 0:
        return Verdict(Decision.WAIT, f"the controller has announced a shutdown; {paused_seconds:.0f} s of it are left")
    if evidence is None:
        return Verdict(Decision.ASK, "nothing of the controller answers")
    if held_by:
        return Verdict(Decision.WAIT, f"a run holds the cluster: {held_by}")
    return _judged(evidence, own)


def _judged(evidence: Evidence, own: str) -> Verdict:
    """What follows from the answers of others about a controller that is silent here."""
    wait = Decision.WAIT
    if evidence.holder is None or not evidence.state:
        return Verdict(wait, "the cloud does not answer: the controller can't be stopped there")
    if evidence.holder == own:
        return Verdict(Decision.GO_ON, "this host has the volume already")
    if seeing := sorted(name for name, sees in evidence.sees.items() if sees):
        return Verdict(wait, f"the controller is reached by {', '.join(seeing)}: the fault is on the way here")
    if evidence.state != LifecycleState.RUNNING:
        decision = Decision.GO_ON if evidence.state in ENDED else wait
        return Verdict(decision, f"the controller's instance is {evidence.state}")
    return _by_witnesses(evidence.sees)


def _by_witnesses(sees: Mapping[str, bool | None]) -> Verdict:
    """What follows from the witnesses, none of which reaches the controller, about an instance that is RUNNING."""
    if not sees:
        text = "there is no other host that could be asked, and the controller's instance is RUNNING"
        return Verdict(Decision.WAIT, text)
    blind, needed = sum(each is False for each in sees.values()), quorum(len(sees))
    if blind < needed:
        return Verdict(Decision.WAIT, f"{blind} of {len(sees)} hosts confirm it, and {needed} are needed")
    return Verdict(Decision.GO_ON, f"{blind} of {len(sees)} other hosts do not reach it either")
