"""What the results of all checks mean together: for each host, and for the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.node_agent.checks.model import Check, Finding, Scope, Status, evaluate, worst
from gpucluster.text import count
from gpucluster.verdict import reports
from gpucluster.verdict.expectation import Expectation, Level
from gpucluster.verdict.measurements import Facts, measured
from gpucluster.verdict.registry import CHECKS, CLUSTER_CHECKS, host_checks

# So many subjects are named in one line; the results have them all.
_NAMED = 8
# In a title, the place of the subject's name.
_SUBJECT = "{subject}"


@dataclass(frozen=True)
class CheckResult:
    """The result of a check for one subject, with what users need beside it.

    Args:
        check: its name in cluster.yml, the documentation and the metrics; `name`: the same in messages.
        scope: what it is about: "host", "node", "pair", "pool" or "cluster".
        subject: which of these; "" for the cluster.
        remedy: what an operator can do when it failed.
        reaction: what follows from a failure: "report" or "drain".
        evidence: the values that led to it.
    """

    name: str
    status: str
    message: str
    check: str
    scope: str
    subject: str
    remedy: str
    reaction: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**vars(self), "evidence": dict(self.evidence)}


@dataclass(frozen=True)
class CheckSummary:
    """The results of one check as text: one line, however many hosts there are."""

    name: str
    status: str
    message: str
    remedy: str
    check: str
    scope: str


@dataclass(frozen=True)
class Verdict:
    """Whether a cluster is good.

    Args:
        hosts: by host, the worst status of the checks of it alone.
        evidence: the file with everything that was measured; "" until it is written.
    """

    level: Level
    results: tuple[CheckResult, ...]
    hosts: Mapping[str, str]
    evidence: str = ""

    @property
    def status(self) -> str:
        """The worst status of all results: that of the cluster."""
        return worst(Status(result.status) for result in self.results).value

    @property
    def passed(self) -> bool:
        """Whether something passed, and nothing failed or is unknown."""
        return any(result.status == Status.PASS for result in self.results) and not self.problems

    @property
    def problems(self) -> tuple[CheckResult, ...]:
        """What failed or is unknown."""
        return tuple(each for each in self.results if each.status in (Status.FAIL, Status.UNKNOWN))

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object, without the results."""
        return {"status": self.status, "level": self.level, "hosts": dict(self.hosts), "evidence": self.evidence}

    @property
    def hosts_text(self) -> str:
        """The hosts that did not pass, each with its status, and how many did."""
        bad = [f"{host} {status}" for host, status in self.hosts.items() if status not in (Status.PASS, Status.SKIP)]
        good = len(self.hosts) - len(bad)
        named = bad[:_NAMED] + ([f"{len(bad) - _NAMED} more"] if len(bad) > _NAMED else [])
        return ", ".join([*named, *([f"{count(good, 'host')} pass"] if good else [])]) or "none was checked"

    def lines(self) -> tuple[CheckSummary, ...]:
        """One line for each check, and for each pool."""
        grouped: dict[tuple[str, str], list[CheckResult]] = {}
        for result in self.results:
            grouped.setdefault((result.check, "" if _of_many(result) else result.subject), []).append(result)
        return tuple(map(_line, grouped.values()))


def judge(expected: Expectation, facts: Facts, level: Level, measured_too: Iterable[Finding] = ()) -> Verdict:
    """Compare what was measured with what is expected.

    Args:
        facts: by host, what it has reported.
        measured_too: findings of jobs that measured the nodes and the network.
    """
    findings = [
        evaluate(check, subject, measured(check, subject, expected, facts), expected)
        for check in CLUSTER_CHECKS
        for subject in check.subjects(expected)
        if level.profile in check.profiles
    ]
    for host in expected.hosts if expected.profile else ():
        findings += _of_the_host(host, expected, facts)
    return of_findings([*findings, *measured_too], expected.hosts, level)


def _result_of(finding: Finding) -> CheckResult:
    """A finding, with what its check declares."""
    check = CHECKS[finding.check]
    return CheckResult(
        title_of(check, finding.subject),
        finding.status.value,
        finding.message,
        check.name,
        check.scope.value,
        finding.subject,
        check.remedy,
        check.reaction.value,
        finding.evidence,
    )


def of_findings(findings: Iterable[Finding], hosts: Iterable[str], level: Level, evidence: str = "") -> Verdict:
    """What these findings mean together.

    Args:
        hosts: all that were checked.
        evidence: the file with everything that was measured.
    """
    results = tuple(map(_result_of, findings))
    return Verdict(level, results, _by_host(hosts, results), evidence)


def problems_of(verdict: Verdict, nodes: Collection[str]) -> dict[str, str]:
    """What the checks have found against each of these nodes; empty for one that is good. Pure."""
    bad = (Status.FAIL, Status.UNKNOWN)
    found = {name: [r for r in verdict.results if r.subject == name and r.status in bad] for name in nodes}
    return {name: "; ".join(f"{each.name}: {each.message}" for each in results) for name, results in found.items()}


def _of_the_host(host: str, expected: Expectation, facts: Facts) -> list[Finding]:
    """What a host has found itself. A check that its report lacks is unknown; without a report, that alone is."""
    assert expected.profile is not None
    try:
        report = reports.read(facts[host]["agent_check"], host, expected.profile)
    except (KeyError, reports.ReportError):
        return []  # the check of the report states why
    names = {finding.check for finding in report.findings}
    lacking = [check.name for check in host_checks(expected.profile) if check.name not in names]
    return [*report.findings, *(Finding(name, host, Status.UNKNOWN, "the host's report lacks it") for name in lacking)]


def _by_host(hosts: Iterable[str], results: Sequence[CheckResult]) -> dict[str, str]:
    about: dict[str, list[Status]] = {host: [] for host in hosts}
    for result in results:
        if result.scope in (Scope.HOST, Scope.NODE) and result.subject in about:
            about[result.subject].append(Status(result.status))
    return {host: worst(statuses).value for host, statuses in about.items()}


def title_of(check: Check[Any], subject: str) -> str:
    """The title of a check for one subject."""
    return check.title.replace(_SUBJECT, subject)


def _line(results: Sequence[CheckResult]) -> CheckSummary:
    first, status = results[0], worst(Status(result.status) for result in results).value
    that = [result for result in results if result.status == status]
    if not _of_many(first):
        message = first.message
    elif status in (Status.PASS, Status.SKIP):
        message = _all_well(results, that)
    else:
        # Worse ones first: what failed, what is unknown, what is only a warning.
        bad = sorted((each for each in results if each.status not in (Status.PASS, Status.SKIP)), key=_weight)
        message = "; ".join(f"{each.subject}: {each.message}" for each in bad[:_NAMED])
        message += f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return CheckSummary(first.name, status, message, first.remedy, first.check, first.scope)


def _weight(result: CheckResult) -> int:
    return (Status.FAIL, Status.UNKNOWN, Status.WARN).index(Status(result.status))


def _of_many(result: CheckResult) -> bool:
    """Whether its title does not name its subject, so that the message must."""
    return result.scope != Scope.CLUSTER and _SUBJECT not in CHECKS[result.check].title


def _all_well(results: Sequence[CheckResult], that: Sequence[CheckResult]) -> str:
    if that[0].status == Status.SKIP:
        return that[0].message
    number = f"{len(that)} of {count(len(results), that[0].scope)}"
    words = {result.message for result in that}
    return f"{number}: {words.pop()}" if len(words) == 1 and max(words, key=len) else number
