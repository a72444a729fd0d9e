"""What the judge of DCGM's diagnosis makes of its results."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Status
from tests.node_agent.checks.judges.results import FAIL, PASS, SKIP, UNKNOWN, WARN
from tests.node_agent.checks.measured import healthy, judged, planted


def error(severity: int | None, text: str = "Persistence Mode: disabled.") -> dict[str, Any]:
    return {"error_category": 8, "error_id": 29, "error_severity": severity, "warning": text}


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ([error(5)], WARN),  # a setting
        ([error(1)], WARN),  # to be watched
        ([error(5), error(2, "Memory test failed.")], FAIL),
        ([error(6)], FAIL),
        ([error(None)], FAIL),
        (["text of DCGM 3"], FAIL),
        ("text of DCGM 3", FAIL),
        ([], FAIL),
    ],
    ids=str,
)
def test_an_error_of_dcgm_counts_by_its_severity_and_reads_as_a_sentence(errors: Any, status: Status) -> None:
    measurements = healthy()
    test = measurements["dcgm_short"]["test_categories"][0]["tests"][0]
    test["results"][3].update(status="Fail", warnings=errors)
    test["test_summary"]["status"] = "Fail"
    found = judged("dcgm_short", measurements)
    assert found.status is status, found
    assert "{" not in found.message
    assert "[" not in found.message


def test_a_fault_that_only_the_summary_of_a_test_has() -> None:
    measurements = healthy()
    test = measurements["dcgm_long"]["test_categories"][1]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [error(2, "Memory test failed on GPU 3")]}
    found = judged("dcgm_long", measurements)
    assert (found.status, found.message) == (FAIL, "memory: Memory test failed on GPU 3")


def test_a_diagnosis_that_ran_no_test_of_the_hardware_is_not_good() -> None:
    measurements = healthy()
    for category in measurements["dcgm_long"]["test_categories"][1:]:
        for result in category["tests"][0]["results"]:
            result.update(status="Skip", info=["not enough permissions"])
    found = judged("dcgm_long", measurements)
    assert found.status is UNKNOWN
    assert "none of its tests of the hardware: memory GPU 0: not enough permissions" in found.message


@pytest.mark.parametrize(("software", "status"), [("Pass", SKIP), ("Fail", FAIL), ("Warn", UNKNOWN)])
def test_divided_gpus_that_dcgm_skips_are_no_fault(software: str, status: Status) -> None:
    measurements = healthy()
    for category in measurements["dcgm_long"]["test_categories"]:
        soft = category["category"] == "Deployment"
        said = {"status": software if soft else "Skip", "info": "" if soft else "MIG is enabled on this GPU"}
        for test in category["tests"]:
            test.update(results=[{"entity_group": "GPU", "entity_id": 0, **said}], test_summary={})
    found = judged("dcgm_long", measurements)
    assert found.status is status
    # Level 1 has none.
    assert judged("dcgm_short", measurements).status is PASS


@pytest.mark.parametrize(
    ("check", "path", "value", "status"),
    [
        ("dcgm_short", ("dcgm_short", "test_categories", 0, "tests", 0, "results", 4, "status"), "Fail", FAIL),
        ("dcgm_short", ("dcgm_short", "test_categories", 0, "tests", 0, "results", 4, "status"), "Warn", WARN),
        ("dcgm_long", ("dcgm_long", "test_categories", 0, "tests", 0, "results", 4, "status"), "Skip", PASS),
    ],
)
def test_planted_faults(check: str, path: tuple[Any, ...], value: Any, status: Status) -> None:
    found = judged(check, planted(*path, value=value))
    assert found.status is status, found
