"""The report and its JSON, which programs read: `FORMAT` is raised with a change of what is there."""

from __future__ import annotations

import pytest

from gpucluster.drift.model import FORMAT, Area, DriftFinding, DriftReport, Unseen, ordered

FOUND = DriftFinding(Area.HOSTS, "file", "compute-1", "/etc/x", "a file", "no file")
UNSEEN = Unseen(Area.HOSTS, "compute-2", "it can't be reached")


def test_the_json_is_stable() -> None:
    assert FORMAT == 1
    assert DriftReport((FOUND,), (UNSEEN,), ("compute-1",), ("a remark",)).to_dict() == {
        "format": 1,
        "drift": True,
        "complete": False,
        "findings": [
            {
                "area": "hosts",
                "what": "file",
                "where": "compute-1",
                "name": "/etc/x",
                "expected": "a file",
                "seen": "no file",
                "fix": "gpucluster apply",
            }
        ],
        "unseen": [{"area": "hosts", "where": "compute-2", "reason": "it can't be reached"}],
        "hosts": ["compute-1"],
        "remarks": ["a remark"],
    }


@pytest.mark.parametrize(
    ("report", "clean", "complete"),
    [
        (DriftReport(()), True, True),
        (DriftReport((FOUND,)), False, True),
        (DriftReport((), (UNSEEN,)), False, False),
    ],
)
def test_a_host_that_does_not_answer_is_not_a_clean_one(report: DriftReport, clean: bool, complete: bool) -> None:
    assert (report.clean, report.complete) == (clean, complete)


def test_findings_are_in_the_order_of_the_areas_and_said_once() -> None:
    cloud = DriftFinding(Area.CLOUD, "resource", "z", "", "exists", "removed")
    assert ordered([FOUND, cloud, FOUND]) == (cloud, FOUND)
