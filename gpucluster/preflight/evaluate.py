"""From facts to findings. Pure: a fact that could not be read becomes a warning, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight.checks import access, machines, network
from gpucluster.preflight.facts import Facts, Unknown
from gpucluster.spec import ClusterSpec

Check = Callable[[ClusterSpec, Facts], Iterator[Finding]]

#: Every check, in the order of the report.
CHECKS: tuple[Check, ...] = (
    access.credentials,
    access.clock,
    access.region,
    access.compartment,
    access.ssh,
    access.terraform,
    machines.domains,
    machines.shapes,
    machines.limits,
    machines.single_resources,
    machines.capacity,
    machines.reservations,
    machines.images,
    machines.names,
    network.existing_vcn,
    network.existing_subnets,
    network.addresses,
    network.overlap,
    network.neighbours,
    network.file_system,
)
_LEVELS = ("error", "warning", "note")
_LISTED = 4


def evaluate(spec: ClusterSpec, facts: Facts) -> tuple[Finding, ...]:
    """The findings of all checks: errors first, then warnings, then notes."""
    found = [finding for check in CHECKS for finding in check(spec, facts)]
    found += _not_checked(facts, {finding.check for finding in found if finding.level == "error"})
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: _LEVELS.index(finding.level)))


def _not_checked(facts: Facts, failed: set[str]) -> Iterator[Finding]:
    """Warnings about unknown facts, one for those with the same reason; none where a check has reported an error."""
    groups: dict[tuple[str, str], list[Unknown]] = {}
    for one in facts.unknown():
        if not (one.refused and one.check in failed):
            groups.setdefault((one.check, one.action), []).append(one)
    outage = _no_answers(facts)
    if outage is not None:
        yield outage
        return
    for (check, action), ones in groups.items():
        whats = list(dict.fromkeys(one.what for one in ones))
        named = ", ".join(whats[:_LISTED]) + (f" and {len(whats) - _LISTED} more" if len(whats) > _LISTED else "")
        yield Finding("warning", check, f"could not read {named}: {ones[0].reason}", action)


def _no_answers(facts: Facts) -> Finding | None:
    """One error instead of many warnings, if the cloud answers no query."""
    queried = (facts.regions, facts.compartment, facts.domains, facts.vcns, facts.instances)
    down = [one for one in queried if isinstance(one, Unknown) and (one.busy or not one.status)]
    if len(down) < len(queried):
        return None
    return Finding("error", "credentials", f"the cloud answers no query: {down[0].reason}", "Try again later")
