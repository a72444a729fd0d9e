"""Evaluates facts. Pure: a fact that could not be read becomes a warning, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight.checks import access, images, kubernetes, machines, network
from gpucluster.preflight.facts import Facts, Unknown
from gpucluster.spec import ClusterSpec
from gpucluster.text import some

Check = Callable[[ClusterSpec, Facts], Iterator[Finding]]

#: Every check, in the order of the report.
CHECKS: tuple[Check, ...] = (
    access.credentials,
    access.clock,
    access.region,
    access.compartment,
    access.strangers,
    access.ssh,
    access.terraform,
    machines.domains,
    machines.shapes,
    machines.limits,
    machines.counted_resources,
    machines.capacity,
    machines.reservations,
    machines.memory_fabrics,
    machines.gpus_of_this_machine,
    images.images,
    kubernetes.release,
    machines.names,
    network.existing_vcn,
    network.existing_subnets,
    network.addresses,
    network.overlap,
    network.neighbours,
    network.file_systems,
    network.throughput,
)
_LEVELS = ("error", "warning", "note")
_LISTED = 4


def evaluate(spec: ClusterSpec, facts: Facts) -> tuple[Finding, ...]:
    """The findings of all checks: errors first, then warnings, then notes."""
    findings = [finding for check in CHECKS for finding in check(spec, facts)]
    findings += _not_checked(facts, {finding.check for finding in findings if finding.level == "error"})
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: _LEVELS.index(finding.level)))


def _not_checked(facts: Facts, failed: set[str]) -> Iterator[Finding]:
    """Warnings about unknown facts, one for those with the same reason; none where a check has reported an error."""
    groups: dict[tuple[str, str], list[Unknown]] = {}
    for fact in facts.unknown():
        if not (fact.refused and fact.check in failed):
            groups.setdefault((fact.check, fact.action), []).append(fact)
    outage = _no_answers(facts)
    if outage is not None:
        yield outage
        return
    for (check, action), unknown in groups.items():
        subjects = list(dict.fromkeys(fact.what for fact in unknown))
        reason = f"could not read {some(subjects, _LISTED)}: {unknown[0].reason}"
        yield Finding("warning", check, reason, action)


def _no_answers(facts: Facts) -> Finding | None:
    """One error instead of many warnings, if the cloud answers no query."""
    queried = (facts.regions, facts.compartment, facts.domains, facts.vcns, facts.instances)
    failed = [fact for fact in queried if isinstance(fact, Unknown) and (fact.busy or not fact.status)]
    if len(failed) < len(queried):
        return None
    return Finding("error", "credentials", f"the cloud answers no query: {failed[0].reason}", "Try again later")
