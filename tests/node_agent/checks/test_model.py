"""The types of checks: what is unknown, and what a report has as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import (
    EXIT_CODES,
    Check,
    CheckOutcome,
    Finding,
    HostReport,
    Measurements,
    Missing,
    Profile,
    Reaction,
    Scope,
    Status,
    evaluate,
    worst,
)


def _judge(measurements: Measurements, expected: int, subject: str) -> CheckOutcome:
    seen = measurements["gpus"]["count"]
    return CheckOutcome(Status.PASS if seen == expected else Status.FAIL, f"{subject} has {seen} of {expected}")


CHECK: Check[int] = Check(
    "gpu_count",
    "every GPU of the shape is there",
    Scope.NODE,
    {Profile.BOOT},
    ("gpus", "driver"),
    5,
    "replace the node",
    Reaction.DRAIN,
    _judge,
    lambda expected, _subject: "" if expected else "the shape has no GPUs",
)
SEEN: dict[str, Any] = {"gpus": {"count": 8}, "driver": "580"}


def test_a_judge_reports_what_the_measurements_mean() -> None:
    assert evaluate(CHECK, "n1", SEEN, 8) == Finding("gpu_count", "n1", Status.PASS, "n1 has 8 of 8")
    assert evaluate(CHECK, "n1", SEEN, 4).status is Status.FAIL


@pytest.mark.parametrize("name", CHECK.needs)
@pytest.mark.parametrize("value", [None, Missing("nvidia-smi gave no answer within 5 s")])
def test_what_a_check_needs_and_does_not_get_makes_it_unknown(name: str, value: object) -> None:
    found = evaluate(CHECK, "n1", {**SEEN, name: value}, 4)
    assert found.status is Status.UNKNOWN
    assert found.message == (value.reason if isinstance(value, Missing) else f"no measurement {name}")
    assert evaluate(CHECK, "n1", {key: SEEN[key] for key in SEEN if key != name}, 4).status is Status.UNKNOWN


def test_a_measurement_of_an_unknown_form_blames_no_node() -> None:
    found = evaluate(CHECK, "n1", {**SEEN, "gpus": []}, 4)
    assert found.status is Status.UNKNOWN
    assert "unknown form" in found.message


def test_a_check_that_does_not_apply_is_skipped_with_its_reason() -> None:
    assert evaluate(CHECK, "n1", {}, 0) == Finding("gpu_count", "n1", Status.SKIP, "the shape has no GPUs")


@pytest.mark.parametrize(
    ("statuses", "together", "code"),
    [
        ([Status.PASS, Status.SKIP], Status.PASS, 0),
        ([Status.PASS, Status.WARN], Status.WARN, 1),
        ([Status.UNKNOWN, Status.WARN], Status.UNKNOWN, 3),
        ([Status.UNKNOWN, Status.FAIL], Status.FAIL, 2),
        ([Status.SKIP], Status.SKIP, 0),
        ([], Status.UNKNOWN, 3),
    ],
)
def test_the_worst_status_counts(statuses: list[Status], together: Status, code: int) -> None:
    assert worst(statuses) is together
    assert EXIT_CODES[together] == code


REPORT = HostReport(
    "n1", Profile.BOOT, 1700000000.5, 0.25, "b" * 36, (Finding("gpu_count", "n1", Status.FAIL, "7 of 8"),)
)


def test_a_report_survives_json() -> None:
    text = json.dumps(REPORT.to_dict())
    assert HostReport.from_dict(json.loads(text)) == REPORT
    assert json.loads(text)["status"] == "fail"


@pytest.mark.parametrize(
    "change",
    [
        {"host": 1},
        {"profile": "daily"},
        {"started": "soon"},
        {"findings": {}},
        {"findings": [1]},
        {"findings": [{"check": "x"}]},
        {"findings": [{"check": "x", "subject": "n1", "message": "", "status": "good"}]},
    ],
)
def test_what_is_not_a_report_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^not a report of checks"):
        HostReport.from_dict({**REPORT.to_dict(), **change})


def test_a_report_without_findings_is_unknown() -> None:
    assert replace(REPORT, findings=()).status is Status.UNKNOWN
