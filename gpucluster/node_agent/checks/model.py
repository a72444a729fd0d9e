"""The types of all checks, on the hosts and on the operator's side. Pure.

A check is an object: it names what it needs to know, and its judge decides what that means. What it needs and does not
get makes the result `unknown`: never a pass, and never an accusation. A tool that reports itself that what it was asked
about does not work has measured something: the check fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Callable, Generic, TypeVar


class Status(str, Enum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105 - not a password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


#: Exit status of `gpucluster-agent check` by the worst status of its findings, as monitoring plugins have it: 0 ok,
#: 1 warning, 2 critical, 3 unknown. A skipped check is not a problem.
EXIT_CODES: Mapping[Status, int] = {
    Status.PASS: 0,
    Status.SKIP: 0,
    Status.WARN: 1,
    Status.FAIL: 2,
    Status.UNKNOWN: 3,
}
#: In the evidence of a finding, true: what was found is known to need more than a reboot of the host.
BEYOND_REBOOT = "beyond_reboot"
# What is known to be bad counts more than what is not known, and that more than a warning.
BY_WEIGHT = (Status.SKIP, Status.PASS, Status.WARN, Status.UNKNOWN, Status.FAIL)


class Scope(str, Enum):
    """What one result of a check is about. It is judged once for each of these."""

    HOST = "host"
    NODE = "node"
    PAIR = "pair"
    POOL = "pool"
    CLUSTER = "cluster"


class Profile(str, Enum):
    """When a check runs."""

    #: After the boot of a node, before its first job.
    BOOT = "boot"
    #: Before a job, on each of its nodes.
    PROLOG = "prolog"
    #: After a job.
    EPILOG = "epilog"
    #: Every few minutes, while the node is idle or not.
    PERIODIC = "periodic"
    #: At the end of `apply`, and by `verify`.
    QUICK = "quick"
    #: By `verify --level full`: it needs the node for itself.
    FULL = "full"


class Reaction(str, Enum):
    """What follows when the check fails."""

    #: It is reported, and nothing is done.
    REPORT = "report"
    #: The node gets no further jobs, and is replaced if it is elastic.
    DRAIN = "drain"


@dataclass(frozen=True)
class Missing:
    """A measurement that could not be made.

    Args:
        reason: why, as text: "nvidia-smi gave no answer within 5 s".
    """

    reason: str


@dataclass(frozen=True)
class RefusedMeasurement:
    """What a tool reported instead of a measurement: that its subject does not work.

    Args:
        reason: as text: "NVIDIA's driver is not loaded; nvidia-smi ended with status 9: ...".
    """

    reason: str


#: By name of the measurement, its value, or why there is none.
Measurements = Mapping[str, Any]


@dataclass(frozen=True)
class CheckOutcome:
    """What a judge returns.

    Args:
        message: what was seen, in one line of text.
        evidence: the values that led to it, as JSON has them. Never a secret.
    """

    status: Status
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


Expected = TypeVar("Expected")


@dataclass(frozen=True)
class Check(Generic[Expected]):
    """One check.

    Args:
        name: unique, lower case with underscores; cluster.yml switches it off by it.
        title: what is checked, as it stands in lists and in the documentation.
        scope: what one result is about.
        profiles: when it runs.
        needs: names of the measurements without which it can't judge.
        timeout_s: how long measuring may take, in seconds.
        remedy: what the operator can do when it fails.
        reaction: what follows when it fails.
        reboot: whether a reboot of the host may fix what it finds.
        judge: decides what the measurements mean: gets them (those of `needs` are there), what is expected of the host
            or of the cluster, and the subject: the name of the host, node, pair or pool, "" for the cluster.
        applies: whether there is anything to check: "" or the reason why not ("the shape has no GPUs"). The result is
            `skip` then.
        hardware: what fails is the hardware, and not what runs on it.
    """

    name: str
    title: str
    scope: Scope
    profiles: Collection[Profile]
    needs: tuple[str, ...]
    timeout_s: float
    remedy: str
    reaction: Reaction
    judge: Callable[[Measurements, Expected, str], CheckOutcome]
    applies: Callable[[Expected, str], str] = lambda _expected, _subject: ""
    hardware: bool = False
    reboot: bool = False


@dataclass(frozen=True)
class Finding:
    """The result of a check for one subject."""

    check: str
    subject: str
    status: Status
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**vars(self), "status": self.status.value, "evidence": dict(self.evidence)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """From a JSON object.

        Raises:
            ValueError: it is none.
        """
        try:
            words = [data[key] for key in ("check", "subject", "message")]
            evidence = data.get("evidence", {})
            if not all(isinstance(word, str) for word in words) or not isinstance(evidence, Mapping):
                raise TypeError
            return cls(words[0], words[1], Status(data["status"]), words[2], evidence)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"not a finding: {str(data)[:200]}") from None


def evaluate(check: Check[Expected], subject: str, measurements: Measurements, expected: Expected) -> Finding:
    """Judge one check for one subject.

    What a tool refused makes the check fail. What the check needs and does not get makes it unknown. So does a judge
    that raises an error: it met a measurement of an unknown form.
    """
    reason = check.applies(expected, subject)
    if reason:
        return Finding(check.name, subject, Status.SKIP, reason)
    refused = [value.reason for value in map(measurements.get, check.needs) if isinstance(value, RefusedMeasurement)]
    if refused:
        return Finding(check.name, subject, Status.FAIL, "; ".join(dict.fromkeys(refused)))
    missing = [_why(name, measurements) for name in check.needs if _absent(measurements.get(name))]
    if missing:
        return Finding(check.name, subject, Status.UNKNOWN, "; ".join(missing))
    try:
        outcome = check.judge(measurements, expected, subject)
    except Exception as error:  # the judges read what strange programs wrote
        message = f"the measurement has an unknown form: {type(error).__name__}: {error}"
        return Finding(check.name, subject, Status.UNKNOWN, message)
    return Finding(check.name, subject, outcome.status, outcome.message, outcome.evidence)


def _absent(value: Any) -> bool:
    return value is None or isinstance(value, Missing)


def _why(name: str, measurements: Measurements) -> str:
    value = measurements.get(name)
    return value.reason if isinstance(value, Missing) else f"no measurement {name}"


def worst(statuses: Iterable[Status]) -> Status:
    """The status of all of them together: fail before unknown, unknown before warn. Of none: unknown."""
    return max(statuses, key=BY_WEIGHT.index, default=Status.UNKNOWN)


@dataclass(frozen=True)
class HostReport:
    """What one run of a profile found on a host.

    Args:
        host: its name.
        profile: which checks ran.
        started: Unix time in seconds.
        duration_s: how long it took, in seconds, by a clock that never jumps.
        boot_id: which boot of the host it is, so that a restart between two reports can be seen.
    """

    host: str
    profile: Profile
    started: float
    duration_s: float
    boot_id: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The worst of its findings. A report without any is unknown."""
        return worst(finding.status for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            **vars(self),
            "profile": self.profile.value,
            "status": self.status.value,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HostReport:
        """From a JSON object.

        Raises:
            ValueError: it is none.
        """
        try:
            words = [data[key] for key in ("host", "boot_id")]
            if not all(isinstance(word, str) for word in words) or not isinstance(data["findings"], list):
                raise TypeError
            findings = tuple(Finding.from_dict(each) for each in data["findings"])
            times = float(data["started"]), float(data["duration_s"])
            return cls(words[0], Profile(data["profile"]), *times, words[1], findings)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a report of checks: {error}") from None


def accusations(report: HostReport, drains: Collection[str]) -> list[Finding]:
    """The findings of a report that are a reason to drain."""
    return [each for each in report.findings if each.status is Status.FAIL and each.check in drains]
