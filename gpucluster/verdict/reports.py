"""What hosts have found themselves: the report of `gpucluster-agent check`, if it is one and of this run.

The collector of facts hands over what the program has written, how it ended, and the host's clock before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import CheckOutcome, HostReport, Measurements, Profile, Scope, Status
from gpucluster.node_agent.checks.registry import BY_NAME, TOTAL_S
from gpucluster.verdict.expectation import Expectation, cluster_check

# A clock is read to the microsecond, a report may be rounded.
_CLOCK_SECONDS = 1.0
# How much longer or shorter a run may be by the clock than by the one that never jumps.
_JUMP_SECONDS = 2.0
# How much longer than its checks the program may take, for its start and its end.
_MARGIN_SECONDS = 10.0
#: How long the program may take, by profile.
SECONDS: Mapping[Profile, float] = {profile: limit + _MARGIN_SECONDS for profile, limit in TOTAL_S.items()}
# The exit status of `timeout` when it has ended the program; when it had to kill it, and itself with it, as shells and
# as Python name it.
_OUT_OF_TIME = (124, 137, -9)
_NO_COMMAND = "its agent is of an earlier version and has no checks; run: gpucluster apply"


class ReportError(ValueError):
    """There is no report that could be relied on."""


def read(raw: Mapping[str, Any], host: str, profile: Profile) -> HostReport:
    """The report of a host.

    Args:
        raw: `output`, `error` and `exit_status` of the program, and in seconds of the host's clock when it `began` and
            `ended`, and how long it took by a clock that never jumps (`took`).

    Raises:
        ReportError: there is none, or it is cut off, of another host or another run.
    """
    if not isinstance(raw, Mapping):
        raise ReportError("the probe has sent no report")
    if raw.get("busy"):
        raise ReportError("jobs run on it, and these checks need the node for themselves")
    try:
        output, error, status = str(raw["output"]), str(raw["error"]).strip(), raw["exit_status"]
        began, ended, took = (float(raw[name]) for name in ("began", "ended", "took"))
    except (KeyError, TypeError, ValueError) as fault:
        raise ReportError(f"the probe has sent no whole report: {fault}") from None
    if status in _OUT_OF_TIME:
        raise ReportError(f"no report within {SECONDS[profile]:.0f} s")
    if not output.strip():
        if error.startswith("usage: gpucluster-agent "):
            raise ReportError(_NO_COMMAND)
        raise ReportError(error or f"the program wrote nothing and ended with {status}")
    try:
        report = HostReport.from_dict(bounded.loads(output))
    except (ValueError, RecursionError) as fault:
        raise ReportError(f"the report is cut off or damaged: {str(fault)[:200]}") from None
    _check_origin(report, host, profile)
    _check_time(report, began, ended, took)
    return report


def _check_origin(report: HostReport, host: str, profile: Profile) -> None:
    if report.host != host:
        raise ReportError(f"the report is of {report.host}")
    if report.profile is not profile:
        raise ReportError(f"the report is of the profile {report.profile.value}")
    names = [finding.check for finding in report.findings]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ReportError(f"the report has two findings of {', '.join(twice)}")
    foreign = sorted(set(names) - set(BY_NAME))
    if foreign:
        raise ReportError(
            f"the report is of another release, with the checks {', '.join(foreign)}; run: gpucluster apply"
        )
    others = sorted({finding.subject for finding in report.findings} - {host})
    if others:
        raise ReportError(f"the report has findings about {', '.join(others)}")


def _check_time(report: HostReport, began: float, ended: float, took: float) -> None:
    if abs(ended - began - took) > _JUMP_SECONDS:
        raise ReportError("the host's clock has jumped during its checks")
    if not began - _CLOCK_SECONDS <= report.started <= ended + _CLOCK_SECONDS:
        raise ReportError("the report is of another time than the run")


def request(expected: Expectation) -> dict[str, Any]:
    """What of the cluster is to be collected; `handover.facts_requests` makes the questions to its hosts of it."""
    profile = expected.profile
    return {
        "profile": profile.value if profile else None,
        "seconds": int(SECONDS[profile]) if profile else 0,
        "pools": None if expected.whole else list(expected.pools),
        "nodes": None if expected.whole else list(expected.nodes),
        "with_elastic": expected.with_elastic,
        "pods": _pods(expected) if profile is Profile.FULL else [],
    }


def _pods(expected: Expectation) -> list[dict[str, Any]]:
    """The nodes of each pool on which pods are tried; none without Kubernetes."""
    desired = expected.kubernetes
    if desired is None:
        return []
    return [
        {
            "pool": pool,
            "nodes": {node: desired.names.get(node, node) for node in nodes},
            "rdma": dict(desired.pod_rdma.get(pool, {})),
        }
        for pool, nodes in expected.pools.items()
    ]


@cluster_check(
    "hosts report their own checks", "agent_check", scope=Scope.HOST, timeout_s=SECONDS[Profile.QUICK],
    subjects=lambda expected: expected.hosts if expected.profile else (),
    remedy="Try it on the host: sudo gpucluster-agent check --profile quick",
)  # fmt: skip
def _host_report(seen: Measurements, expected: Expectation, host: str) -> CheckOutcome:
    assert expected.profile is not None
    try:
        report = read(seen["agent_check"], host, expected.profile)
    except ReportError as error:
        return CheckOutcome(Status.UNKNOWN, str(error))
    return CheckOutcome(Status.PASS, f"in {report.duration_s:.1f} s", {"boot_id": report.boot_id})


CHECKS = (_host_report,)
