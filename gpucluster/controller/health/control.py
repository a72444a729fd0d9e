"""Carries out what the policy decides: write the decision, tell Slurm, write that it is done.

A process that is killed at any point leaves a state from which the next pass goes on: a drain that is in the journal
and not in Slurm is done again, one that is in Slurm and not marked as done is marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from gpucluster.controller.admin_log import to_stderr
from gpucluster.controller.health import policy, repair
from gpucluster.controller.health.policy import (
    Action,
    Decision,
    Evidence,
    JournalRecord,
    Moment,
    RecordKind,
    SchedulerNode,
)
from gpucluster.controller.health.slurm import NodeScheduler
from gpucluster.controller.health.store import ReportStore
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.errors import AgentError, Refused

#: What the journal has before and after Slurm is told.
_KINDS: Mapping[Action, tuple[RecordKind, RecordKind]] = {
    Action.DRAIN: (RecordKind.DRAIN, RecordKind.DONE),
    Action.PERSON: (RecordKind.PERSON, RecordKind.DONE),
    Action.UNDRAIN: (RecordKind.UNDRAIN, RecordKind.ENDED),
    Action.REBOOT: (RecordKind.REBOOT, RecordKind.ASKED),
    # The drain stays, with another reason.
    Action.GIVE_UP: (RecordKind.GIVEN_UP, RecordKind.DONE),
}


@dataclass(frozen=True)
class Carried:
    """A decision, and whether it was carried out.

    Args:
        succeeded: Slurm has done it. Of a decision that asks for nothing: True.
        problem: why it is not done.
    """

    decision: Decision
    succeeded: bool
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As `health react` prints it."""
        decision = self.decision
        reason = f"{decision.reason} (not done: {self.problem})" if self.problem else decision.reason
        return {
            "node": decision.node,
            "action": decision.action.value,
            "done": self.succeeded,
            "reason": reason,
            "checks": list(decision.checks),
        }


@dataclass(frozen=True)
class Outlook:
    """What one pass saw and did."""

    at: Moment
    carried: tuple[Carried, ...]
    nodes: Mapping[str, SchedulerNode]
    evidence: tuple[Evidence, ...]
    breakers: Mapping[str, policy.Breaker]
    suspects: Mapping[tuple[str, str], int]


class Control:
    """The one place that drains and undrains nodes for their checks.

    Args:
        drains: the checks whose failure drains.
        fixable: those of them where a reboot may fix what failed.
        moment: the present moment.
        say: where messages for the log go.
    """

    def __init__(
        self,
        store: ReportStore,
        slurm: NodeScheduler,
        settings: policy.PolicySettings,
        *,
        drains: Collection[str],
        fixable: Collection[str] = (),
        moment: Callable[[], Moment],
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._slurm, self._settings = store, slurm, settings
        self._drains, self._fixable, self._moment = drains, fixable, moment
        self._say = say or to_stderr
        self._said: dict[str, str] = {}

    def is_quiet(self, node: str | None = None) -> bool:
        """Whether a pass would have nothing to do: nothing has failed, and no drain of ours is in force.

        Args:
            node: look at this one alone.
        """
        drained = policy.open_drains(self._store.journal.read())
        if drained if node is None else node in drained:
            return False
        return not any(each.accuses for each in self._store.evidence(self._moment(), self._drains, node))

    def react(self, findings: Sequence[Finding], *, shadow: bool) -> Outlook:
        """Decide on what `verify` has found. A failure drains, a pass can undrain; anything else is refused.

        Raises:
            Refused: a finding is neither.
        """
        for finding in findings:
            if finding.status not in (Status.PASS, Status.FAIL) or not finding.subject:
                message = f"{finding.check} of {finding.subject or 'no node'}: {finding.status.value} decides nothing"
                raise Refused(message, "Give findings that pass or fail, each for one node")
        if shadow or self._settings.shadow:
            return self.run(findings, shadow=True)
        with self._store.locked():
            self._store.add_findings(findings, self._moment())
        return self.run(findings)

    def run(self, findings: Sequence[Finding] = (), *, shadow: bool = False) -> Outlook:
        """One pass.

        Args:
            findings: they decide now, besides what nodes have reported.
            shadow: nothing is written and nothing is done.

        Raises:
            Failed: Slurm does not answer.
        """
        with self._store.locked():
            now = self._moment()
            nodes = self._slurm.nodes()
            journal = self._store.journal
            records = journal.read()
            settled = policy.settle(now, nodes, records)
            settings = replace(self._settings, shadow=self._settings.shadow or shadow)
            if not shadow:
                journal.append(*settled)
            records += settled
            evidence = _with(self._store.evidence(now, self._drains, reboots=self._fixable), findings, now)
            decisions = policy.decide(now, evidence, nodes, records, settings)
            subjects = {finding.subject for finding in findings}
            if findings:
                # Who asks about some nodes gets an answer about these, and nothing else is done on the way.
                decisions = [each for each in decisions if each.node in subjects]
            else:
                changed = {each.node for each in decisions if each.action is not Action.NONE}
                steps = repair.decide(now, evidence, nodes, records, settings)
                decisions += [each for each in steps if each.node not in changed]
            carried = [self._carry_out(each, nodes, shadow=shadow) for each in decisions]
            if not shadow:
                journal.shorten(now)
            after = journal.read()
        return Outlook(
            now,
            tuple(carried),
            nodes,
            tuple(evidence),
            policy.breakers(now, nodes, after, settings),
            policy.suspects(nodes, evidence),
        )

    def _carry_out(self, decision: Decision, nodes: Mapping[str, SchedulerNode], *, shadow: bool) -> Carried:
        journal, name = self._store.journal, decision.node
        if decision.action is Action.NONE:
            self._say_once(name, f"{name} fails {', '.join(decision.checks)}: {decision.reason}")
            return Carried(decision, succeeded=True)
        node = nodes[name]
        at, about = self._moment(), (node.pool, decision.checks, decision.reason, node.instance)
        if decision.action is Action.SHADOW:
            if not shadow and not decision.repeats:
                journal.append(JournalRecord(RecordKind.SHADOW, name, at, *about))
            self._say_once(name, f"shadow mode: {name} {decision.reason}")
            return Carried(decision, succeeded=True)
        try:
            # An administrator may have decided on the node since it was read.
            fresh = self._slurm.nodes(name).get(name)
            if fresh is None or not _may(decision.action, fresh):
                return Carried(
                    decision,
                    succeeded=False,
                    problem="the node was changed meanwhile by an administrator or another program",
                )
            self._tell(decision, JournalRecord(RecordKind.DRAIN, name, at, *about))
        except AgentError as error:
            self._say_once(name, f"{name}: {decision.action.value} is not done: {error.message}")
            return Carried(decision, succeeded=False, problem=error.message)
        self._said.pop(name, None)
        self._say(f"{name}: {decision.action.value}: {decision.reason}")
        return Carried(decision, succeeded=True)

    def _tell(self, decision: Decision, record: JournalRecord) -> None:
        """Write that it begins, tell Slurm, write that it is done.

        Args:
            record: what the journal has of each of these.

        Raises:
            Failed: Slurm does not do it.
        """
        journal, name = self._store.journal, decision.node
        kind, done = _KINDS[decision.action]
        if not decision.repeats:
            journal.append(replace(record, kind=kind, boot=decision.boot))
        if decision.action is Action.UNDRAIN:
            self._slurm.undrain(name)
        elif decision.action is Action.REBOOT:
            self._slurm.reboot(name)
        else:
            self._slurm.drain(name, decision.reason)
        journal.append(JournalRecord(done, name, self._moment()))

    def _say_once(self, name: str, words: str) -> None:
        if self._said.get(name) != words:
            self._said[name] = words
            self._say(words)


def _may(action: Action, node: SchedulerNode) -> bool:
    """Whether a node is still one for which this was decided."""
    if action is Action.UNDRAIN:
        return node.ours
    if action is Action.GIVE_UP:
        return node.ours or node.lost
    if action is Action.REBOOT:
        return node.ours and not node.busy
    return node.free or node.unkillable


def _with(evidence: Sequence[Evidence], findings: Sequence[Finding], now: Moment) -> list[Evidence]:
    """The findings in the place of older results."""
    replacements = {
        (each.subject, each.check): Evidence(
            each.subject, each.check, each.status, each.message, now, drains=True, current=True
        )
        for each in findings
    }
    return [*(each for each in evidence if (each.node, each.check) not in replacements), *replacements.values()]
