"""What hosts have found themselves: the report of `gpucluster-agent check`, if it is one and of this run.

The probe of Ansible hands over what the program has written, how it ended, and the host's clock before and after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.agent.checks.model import Measurements, Outcome, Profile, Reaction, Report, Scope, Status
from gpucluster.verdict.expectation import ClusterCheck, Expectation

# A clock is read to the microsecond, a report may be rounded.
_CLOCK_SECONDS = 1.0
# How much longer or shorter a run may be by the clock than by the one that never jumps.
_JUMP_SECONDS = 2.0
# How long a host may take for all of its checks, by profile: those of `full` include diagnoses of GPUs.
SECONDS: Mapping[Profile, float] = {Profile.QUICK: 60.0, Profile.FULL: 1800.0}
_NO_COMMAND = "its agent is of an earlier version and has no checks; run: gpucluster apply"


class ReportError(ValueError):
    """There is no report that could be relied on."""


def read(raw: Mapping[str, Any], host: str, profile: Profile) -> Report:
    """The report of a host.

    Args:
        raw: `output`, `error` and `exit_status` of the program, and in seconds of the host's clock when it `began` and
            `ended`, and how long it took by a clock that never jumps (`took`).

    Raises:
        ReportError: there is none, or it is cut off, of another host or another run.
    """
    output, error, status = str(raw["output"]), str(raw["error"]).strip(), raw["exit_status"]
    if status is None:
        raise ReportError(error or "the program could not be started")
    if not output.strip():
        if error.startswith("usage: gpucluster-agent "):
            raise ReportError(_NO_COMMAND)
        raise ReportError(error or f"the program wrote nothing and ended with {status}")
    try:
        report = Report.from_dict(json.loads(output))
    except ValueError as fault:
        raise ReportError(f"the report is cut off or damaged: {str(fault)[:200]}") from None
    _check_origin(report, host, profile)
    _check_time(report, float(raw["began"]), float(raw["ended"]), float(raw["took"]))
    return report


def _check_origin(report: Report, host: str, profile: Profile) -> None:
    if report.host != host:
        raise ReportError(f"the report is of {report.host}")
    if report.profile is not profile:
        raise ReportError(f"the report is of the profile {report.profile.value}")
    others = sorted({finding.subject for finding in report.findings} - {host})
    if others:
        raise ReportError(f"the report has findings about {', '.join(others)}")


def _check_time(report: Report, began: float, ended: float, took: float) -> None:
    if abs(ended - began - took) > _JUMP_SECONDS:
        raise ReportError("the host's clock has jumped during its checks")
    if not began - _CLOCK_SECONDS <= report.started <= ended + _CLOCK_SECONDS:
        raise ReportError("the report is of another time than the run")


def _judge(seen: Measurements, expected: Expectation, host: str) -> Outcome:
    assert expected.profile is not None
    try:
        report = read(seen["agent_check"], host, expected.profile)
    except ReportError as error:
        return Outcome(Status.UNKNOWN, str(error))
    return Outcome(Status.PASS, f"in {report.duration_s:.1f} s", {"boot_id": report.boot_id})


CHECKS = (
    ClusterCheck(
        name="host_report",
        title="hosts report their own checks",
        scope=Scope.HOST,
        profiles=(Profile.QUICK, Profile.FULL),
        needs=("agent_check",),
        timeout_s=SECONDS[Profile.QUICK],
        remedy="Try it on the host: sudo gpucluster-agent check --profile quick",
        reaction=Reaction.REPORT,
        judge=_judge,
        subjects=lambda expected: expected.hosts if expected.profile else (),
    ),
)
