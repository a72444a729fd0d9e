"""`verify --fix`: bad nodes are taken out of service, replaced, checked again, and let into service.

The health service on the controller drains and undrains; `verdict.repair` plans; here is what a plan does. A run may be
killed at any point: which nodes are drained, and why, is in Slurm, and the next run continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpucluster import handover
from gpucluster.errors import GpuClusterError, VerifyError
from gpucluster.events import Sink, info, warn
from gpucluster.lifecycle.host_reports import HostFault, fault_of_findings, fault_of_reason, fault_of_report
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.replace import ElasticReplacement, is_elastic
from gpucluster.lifecycle.verification import failed
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.rules.reasons import FOR_A_PERSON, RETURNED, drained_by_checks
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.operations.drain import DRAIN_TIMEOUT, Draining, SlurmNode
from gpucluster.operations.health import HealthService
from gpucluster.spec import ClusterSpec
from gpucluster.verdict import repair
from gpucluster.verdict.registry import CHECKS
from gpucluster.verdict.repair import NodeInRepair, RepairPlan, Standing
from gpucluster.verdict.verdict import Verdict, of_findings
from gpucluster.workspace.run import Run


@dataclass(frozen=True)
class Fix:
    """What `verify --fix` may do.

    Args:
        shadow: report what would be done, and do nothing.
        replace_nodes: recreate permanent nodes, with what is on their disks lost.
        drain_timeout: seconds to wait for jobs on nodes that are replaced; with 0 they are requeued, or cancelled.
        confirm: is called with the names of the nodes whose machines would be terminated, before anything is drained.
            It raises an error to stop.
    """

    shadow: bool = False
    replace_nodes: bool = False
    drain_timeout: float = DRAIN_TIMEOUT
    confirm: Callable[[Sequence[str]], None] = lambda _nodes: None


class Checking(Protocol):
    """Checks the cluster, or a part of it."""

    def __call__(self, deployment: Deployment) -> Verdict:
        """The verdict, whether or not it passed."""


class Recreate(Protocol):
    """Recreates permanent nodes."""

    def __call__(
        self, run: Run, nodes: Sequence[str], drain_timeout: float, faults: Mapping[str, HostFault]
    ) -> Deployment:
        """Each under its name, and configured. Returns the hosts.

        Args:
            faults: of their hardware, by the node's name: their physical hosts are reported to Oracle.
        """


class Repair:
    """Repairs one cluster.

    Args:
        recreate: recreates permanent nodes.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        health: HealthService,
        draining: Draining,
        elastic: ElasticReplacement,
        recreate: Recreate,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._health = health
        self._draining = draining
        self._elastic = elastic
        self._recreate = recreate
        self._on_event = on_event

    def run(
        self, run: Run, deployment: Deployment, verdict: Verdict, check: Checking, fix: Fix
    ) -> tuple[Verdict, RepairPlan]:
        """Do what follows from a verdict. Returns the verdict at the end, which has passed, and what was done.

        Raises:
            VerifyError: something that was checked does not pass at the end: with what an operator does next.
            InputError: the answer to the question was no, or cluster.yml asks for other changes. Nothing was replaced.
            ToolError: jobs still run on nodes that are to be replaced, which stay drained; or the controller does not
                answer.
        """
        with run.phase("decide"):
            findings = findings_of(verdict)
            plan = self._plan(findings, fix, shadow=True).shadowed
            if not fix.shadow:
                if plan.would:
                    fix.confirm(plan.would)
                plan = _only(plan.would, self._plan(findings, fix, shadow=False))
            self._announce(plan)
        if plan.replaced or plan.undrained:
            deployment = self._replace(run, deployment, plan, self._faults(plan, findings), fix)
            verdict = self._prove(deployment, verdict, check, plan)
        if not verdict.passed:
            raise _failed(verdict, plan)
        return verdict, plan

    def prove(self, deployment: Deployment, nodes: Collection[str], check: Checking) -> Verdict:
        """Check a cluster in which these permanent nodes have another machine, and let those into service again that
        the health service has drained and that pass their checks.

        Raises:
            VerifyError: something does not pass.
        """
        verdict = self._check_drained(deployment, nodes, check)
        if not verdict.passed:
            raise failed(verdict)
        return verdict

    def _check_drained(self, deployment: Deployment, nodes: Collection[str], check: Checking) -> Verdict:
        """Check, let nodes in that pass, and check again what they are part of."""
        drained = self._drained(nodes)
        verdict = check(deployment)
        return check(deployment) if drained and self._undrain(verdict, drained) else verdict

    def _plan(self, findings: Sequence[Finding], fix: Fix, *, shadow: bool) -> RepairPlan:
        decisions = self._health.react(self._deciding(findings), shadow=shadow)
        failed = repair.failures_by_node(findings, CHECKS)
        return repair.plan(self._nodes(), failed, decisions, replace_permanent=fix.replace_nodes)

    def _deciding(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """What the health service is told: it knows nodes of Slurm, and not the other hosts."""
        about = repair.deciding(findings, CHECKS)
        nodes = pools_of(self._spec, {finding.subject for finding in about})
        return tuple(finding for finding in about if finding.subject in nodes)

    def _nodes(self) -> dict[str, NodeInRepair]:
        pools = pools_of(self._spec, known := self._draining.nodes())
        return {
            name: NodeInRepair(name, pools[name], is_elastic(self._spec, name), standing(node), node.reason)
            for name, node in known.items()
            if name in pools
        }

    def _announce(self, plan: RepairPlan) -> None:
        for line in plan.lines():
            info(self._on_event, "nodes", line)
        for each in plan.left:
            warn(self._on_event, f"node {each.node}", f"{each.why}. Next: {each.next}")

    def faults(self, nodes: Collection[str], report: str = "") -> dict[str, HostFault]:
        """The faults of the hardware for which some of these nodes are drained. A scheduler that does not answer is a
        warning: then only the operator's report is known.

        Args:
            nodes: that are to be replaced.
            report: what the operator has seen of all of them.
        """
        seen = dict.fromkeys(nodes, fault_of_report(report)) if report else {}
        try:
            faulty = self._elastic.faulty()
        except GpuClusterError as error:
            warn(self._on_event, "nodes", f"whether they have failed checks is not known: {error.what}")
            return seen
        found = {name: fault_of_reason(faulty[name]) for name in nodes if name in faulty}
        return {**seen, **{name: fault for name, fault in found.items() if fault}}

    def _faults(self, plan: RepairPlan, findings: Iterable[Finding]) -> dict[str, HostFault]:
        """The same for the nodes of a plan: what failed in this run, or in an earlier one."""
        failed = repair.failures_by_node(findings, CHECKS)
        known = self._nodes()
        reasons = {name: known[name].reason if name in known else "" for name in plan.replaced}
        found = {
            name: fault_of_findings(failed[name]) if name in failed else fault_of_reason(reasons[name])
            for name in plan.replaced
        }
        return {name: fault for name, fault in found.items() if fault}

    def _replace(
        self, run: Run, deployment: Deployment, plan: RepairPlan, faults: Mapping[str, HostFault], fix: Fix
    ) -> Deployment:
        with run.phase("replace"):
            self._elastic.replace(plan.elastic, fix.drain_timeout, faults)
        if not plan.permanent:
            return deployment
        of_permanent = {name: fault for name, fault in faults.items() if name in plan.permanent}
        return self._recreate(run, plan.permanent, fix.drain_timeout, of_permanent)

    def _prove(self, deployment: Deployment, before: Verdict, check: Checking, plan: RepairPlan) -> Verdict:
        """The first verdict, with what was touched checked again."""
        part = repair.touched(plan, pools_of(self._spec, (*plan.replaced, *plan.undrained)))
        after = self._check_drained(deployment, plan.permanent, check)
        findings = repair.merged(findings_of(before), findings_of(after), part, CHECKS)
        return of_findings(findings, {**before.hosts, **after.hosts}, before.level, after.evidence)

    def _drained(self, nodes: Collection[str]) -> set[str]:
        """Those that are drained for failed checks."""
        by_name = self._nodes() if nodes else {}
        return {name for name in nodes if name in by_name and by_name[name].standing is Standing.FAILED}

    def _undrain(self, verdict: Verdict, drained: Collection[str]) -> bool:
        """Whether one of these nodes is in service again: the health service lets it in for what was found here, or
        has done so already for a report of the node itself."""
        about = [finding for finding in self._deciding(findings_of(verdict)) if finding.subject in drained]
        self._health.react(about)
        return self._drained(drained) != set(drained)


def findings_of(verdict: Verdict) -> tuple[Finding, ...]:
    """The findings of a verdict."""
    return tuple(
        Finding(each.check, each.subject, Status(each.status), each.message, each.evidence) for each in verdict.results
    )


def standing(node: SlurmNode) -> Standing:
    """Who has taken a node out of service."""
    if node.takes_jobs:
        return Standing.SERVING
    if node.reason.startswith((FOR_A_PERSON, RETURNED)):
        return Standing.PERSON
    return Standing.FAILED if drained_by_checks(node.reason) else Standing.OTHER


def pools_of(spec: ClusterSpec, nodes: Iterable[str]) -> dict[str, str]:
    """The pool of each of these nodes; names of no pool are left out."""
    permanent: Mapping[str, str] = {
        name: pool for pool in spec.pools for name in handover.permanent_names(pool, spec.pools[pool])
    }
    pool_of = {}
    for name in nodes:
        elastic = (pool for pool in spec.pools if number_of(elastic_prefix(pool), name))
        pool = permanent.get(name) or next(elastic, "")
        if pool:
            pool_of[name] = pool
    return pool_of


def _only(names: Collection[str], plan: RepairPlan) -> RepairPlan:
    """The plan without nodes that have failed since it was asked which may be replaced: the next run has them."""
    return replace(
        plan,
        elastic=tuple(name for name in plan.elastic if name in names),
        permanent=tuple(name for name in plan.permanent if name in names),
    )


def _failed(verdict: Verdict, plan: RepairPlan) -> VerifyError:
    """The error of a cluster that does not pass, with what an operator does."""
    error = failed(verdict)
    lines = [f"  {line}" for line in plan.lines()]
    what = "\n".join([error.what, *(["what follows:", *lines] if lines else [])])
    first = plan.left[0].next if plan.left else ""
    return VerifyError(what, where=error.where, hint=f"Next: {first}" if first else error.hint, verdict=verdict)
