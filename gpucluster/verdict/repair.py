"""What happens to nodes that failed: which are replaced, which an operator decides on, and what is checked again. Pure.

The health service on the controller decides alone which node is drained, so its decisions are the input here: no node
is replaced that it has not drained. Slurm has what it has decided, also in an earlier run that was killed, so there is
no record of our own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpucluster.controller.health.policy import Action
from gpucluster.measuring.plan import nodes_of
from gpucluster.node_agent.checks.model import Check, Finding, Reaction, Scope, Status


class Standing(StrEnum):
    """Who has taken a node out of service."""

    #: It is in service and takes jobs.
    SERVING = "serving"
    #: The health service, because checks failed.
    FAILED = "failed"
    #: The health service, and it leaves what follows to an operator: the same machine has failed before, or its
    #: physical host was found bad.
    PERSON = "person"
    #: An administrator, or another program.
    OTHER = "other"


@dataclass(frozen=True)
class NodeInRepair:
    """A node as Slurm has it, after the health service has decided.

    Args:
        reason: why it is out of service; empty if it is not.
    """

    name: str
    pool: str
    elastic: bool
    standing: Standing
    reason: str = ""


@dataclass(frozen=True)
class HealthDecision:
    """A decision of the health service.

    Args:
        done: Slurm has done it.
        reason: a text: why, or why not.
        checks: those that led to it.
    """

    node: str
    action: Action
    done: bool
    reason: str
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnrepairedNode:
    """A node that stays as it is until an operator has decided.

    Args:
        next: the command with which an operator goes on.
    """

    node: str
    why: str
    next: str

    def __str__(self) -> str:
        return f"{self.node}: {self.why}. Next: {self.next}"


@dataclass(frozen=True)
class RepairPlan:
    """What follows for the nodes that failed.

    Args:
        elastic: the nodes that are given up: the autoscaler terminates them.
        permanent: the nodes that are recreated under their names.
        would: the nodes that would be one of these without shadow mode.
        undrained: the nodes that the health service has let into service again.
        left: the nodes that are left to an operator.
    """

    elastic: tuple[str, ...] = ()
    permanent: tuple[str, ...] = ()
    would: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()
    left: tuple[UnrepairedNode, ...] = ()

    @property
    def replaced(self) -> tuple[str, ...]:
        """The nodes that get another machine."""
        return (*self.elastic, *self.permanent)

    @property
    def shadowed(self) -> RepairPlan:
        """The same if nothing is done."""
        return replace(self, elastic=(), permanent=(), would=tuple(sorted({*self.would, *self.replaced})))

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**vars(self), "left": [vars(each) for each in self.left]}

    def lines(self) -> tuple[str, ...]:
        """What follows, as text."""
        names = {
            "jobs get another machine in its place": self.elastic,
            "recreated under its name": self.permanent,
            "would be replaced": self.would,
            "in service again, its checks pass": self.undrained,
        }
        return (*(f"{node}: {words}" for words, nodes in names.items() for node in nodes), *map(str, self.left))


@dataclass(frozen=True)
class Touched:
    """What a replacement has changed, so that what was found there before does not count any more.

    Args:
        nodes: those with another machine.
        pools: theirs.
        gone: nodes that have no machine now: there is nothing to check until a job needs one.
    """

    nodes: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    gone: frozenset[str] = field(default=frozenset())

    def covers(self, subject: str, scope: Scope) -> bool:
        """Whether the result of a check for this subject is out of date."""
        if scope is Scope.CLUSTER:
            return bool(self.nodes)
        if scope is Scope.POOL:
            return subject in self.pools
        return bool(self.nodes & set(nodes_of(subject)))


def deciding(findings: Iterable[Finding], checks: Mapping[str, Check[Any]]) -> tuple[Finding, ...]:
    """The findings that the health service decides on: what passes or fails on one host, and drains it if it fails.

    What is unknown decides nothing. A failure of a pair or a pool names no node: see `fabric` for the bad ones.

    Args:
        checks: all of them, by name. A finding of another check decides nothing.
    """
    return tuple(finding for finding in findings if _decides(finding, checks.get(finding.check)))


def _decides(finding: Finding, check: Check[Any] | None) -> bool:
    known = check is not None and check.reaction is Reaction.DRAIN and check.scope in (Scope.HOST, Scope.NODE)
    return known and finding.status in (Status.PASS, Status.FAIL)


def failures_by_node(findings: Iterable[Finding], checks: Mapping[str, Check[Any]]) -> dict[str, list[Finding]]:
    """The findings for which a node is drained, by node."""
    by_node: dict[str, list[Finding]] = {}
    for finding in deciding(findings, checks):
        if finding.status is Status.FAIL:
            by_node.setdefault(finding.subject, []).append(finding)
    return by_node


def plan(
    nodes: Mapping[str, NodeInRepair],
    failed: Mapping[str, Sequence[Finding]],
    decisions: Iterable[HealthDecision],
    *,
    replace_permanent: bool = False,
) -> RepairPlan:
    """What follows for each node that failed, and for each that failed in an earlier run and is still drained.

    Args:
        nodes: as Slurm has them now, after the decisions; without those that have no machine.
        failed: the failures of each node (`failures_by_node`).
        decisions: of the health service, in this run.
        replace_permanent: recreate permanent nodes, with what is on their disks lost.
    """
    decided = {decision.node: decision for decision in decisions}
    undrained = tuple(sorted(name for name, each in decided.items() if each.action is Action.UNDRAIN and each.done))
    elastic: list[str] = []
    permanent: list[str] = []
    would, left = [], []
    drained = [name for name, node in nodes.items() if node.standing in (Standing.FAILED, Standing.PERSON)]
    for name in sorted({*failed, *drained} - {*undrained}):
        node, decision = nodes.get(name), decided.get(name)
        replaceable = node is not None and (node.elastic or replace_permanent)
        if replaceable and node and node.standing is Standing.FAILED and not _shadowed(decision):
            (elastic if node.elastic else permanent).append(name)
        elif replaceable and node and node.standing is Standing.SERVING and _shadowed(decision):
            would.append(name)
        else:
            left.append(_left(name, node, decision, failed.get(name, ())))
    return RepairPlan(tuple(elastic), tuple(permanent), tuple(would), undrained, tuple(left))


def _shadowed(decision: HealthDecision | None) -> bool:
    return decision is not None and decision.action is Action.SHADOW


def _left(
    name: str, node: NodeInRepair | None, decision: HealthDecision | None, failed: Sequence[Finding]
) -> UnrepairedNode:
    """Why a node is left as it is, and what an operator does."""
    failures = "; ".join(f"{finding.check}: {finding.message}" for finding in failed)
    another = f"gpucluster replace {name}"
    if node is None:
        return UnrepairedNode(name, f"Slurm does not know it ({failures})", f"gpucluster ssh {name}")
    if node.standing is Standing.PERSON:
        resume = f"gpucluster ssh -- sudo scontrol update nodename={name} state=resume"
        return UnrepairedNode(name, node.reason, f"{another}. Or keep it: {resume}")
    if node.standing is Standing.OTHER:
        why = f"an administrator or another program has taken it out of service ({node.reason})"
        return UnrepairedNode(name, f"{why}: {failures}" if failures else why, another)
    if node.standing is Standing.FAILED and _shadowed(decision) and decision:
        return UnrepairedNode(name, decision.reason, "gpucluster verify --fix")
    if node.standing is Standing.FAILED:
        why = f"it is drained, and what is on its disks is lost with a replacement ({node.reason})"
        return UnrepairedNode(name, why, another)
    return UnrepairedNode(
        name, decision.reason if decision else f"the health service has decided nothing ({failures})", another
    )


def touched(plan: RepairPlan, pool_of: Mapping[str, str]) -> Touched:
    """What is out of date after this plan was carried out."""
    nodes = frozenset({*plan.replaced, *plan.undrained})
    pools = frozenset(pool_of[name] for name in nodes if name in pool_of)
    return Touched(nodes, pools, frozenset(plan.elastic))


def merged(
    before: Iterable[Finding], after: Iterable[Finding], part: Touched, checks: Mapping[str, Check[Any]]
) -> tuple[Finding, ...]:
    """The findings of the first run that still hold, with those of the second one. Nothing is found twice.

    A check that is out of date and that the second run has not made is unknown, unless its node is gone.
    """
    newer = {(finding.check, finding.subject): finding for finding in after}
    result = []
    for finding in before:
        key = (finding.check, finding.subject)
        if key in newer:
            result.append(newer.pop(key))
            continue
        check = checks.get(finding.check)
        if not part.covers(finding.subject, check.scope if check else Scope.NODE):
            result.append(finding)
        elif not part.gone & set(nodes_of(finding.subject)):
            words = "not checked again since a node was replaced"
            result.append(Finding(finding.check, finding.subject, Status.UNKNOWN, words))
    return (*result, *newer.values())


def pools_of(nodes: Iterable[NodeInRepair]) -> dict[str, str]:
    """The pool of each node, by its name."""
    return {node.name: node.pool for node in nodes}
