"""Judge of DCGM's diagnosis (`dcgmi diag -j`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import PartResult, sum_up
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status, worst
from gpucluster.node_agent.checks.refusals import is_divided

_STATUS: Mapping[str, Status] = {
    "pass": Status.PASS,
    "warn": Status.WARN,
    "fail": Status.FAIL,
    "skip": Status.SKIP,
    "notrun": Status.SKIP,
    "not run": Status.SKIP,
}
_LONGEST = 200
#: The category of tests that look at software and settings only.
_SOFTWARE = "deployment"
#: Severities of an error with which a GPU does its work: 1 "needs to be monitored", 5 "a config change fixes it".
#: Source: DCGM 4, dcgm_errors.h, dcgmErrorSeverity_t (2: isolate, 3: unknown, 4: triage, 6: drain and reset).
_WORKS = frozenset({1, 5})


def judge(measurement: str, *, hardware: bool = False) -> Callable[[Measurements, NodeExpectation, str], CheckOutcome]:
    """The judge of the diagnosis that a measurement has.

    Args:
        hardware: the level tests the hardware, so that a run in which none of these tests ran has measured nothing.
    """

    def of_level(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
        answer = measured[measurement]
        if answer.get("divided"):
            return CheckOutcome(
                Status.SKIP, f"the GPUs are divided (MIG), and DCGM does not test them: {answer['divided']}"
            )
        parts = list(_results(answer["test_categories"]))
        if all(part.status is Status.SKIP for part in parts):
            return CheckOutcome(Status.UNKNOWN, "DCGM has run no test")
        of_hardware = list(
            _results(each for each in answer["test_categories"] if str(each.get("category", "")).lower() != _SOFTWARE)
        )
        if hardware and all(part.status is Status.SKIP for part in of_hardware):
            why = of_hardware[0].message if of_hardware else "there are none"
            words = f"DCGM has run none of its tests of the hardware: {why}"
            divided = of_hardware and all(is_divided(part.message) for part in of_hardware)
            if divided and worst(part.status for part in parts) is Status.PASS:
                return CheckOutcome(Status.SKIP, words)
            parts.append(PartResult(Status.UNKNOWN, words))
        return sum_up(parts, f"{sum(part.status is Status.PASS for part in parts)} results of DCGM, all good")

    return of_level


def _results(categories: Iterable[Mapping[str, Any]]) -> Iterator[PartResult]:
    """One for each test and GPU, and what the summary of a test adds. DCGM 3 has `gpu_ids`, DCGM 4 `entity_id`."""
    for category in categories:
        for test in category["tests"]:
            for result in test["results"]:
                what = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
                yield _part(f"{test['name']} {result.get('entity_group', 'GPU')} {what}", result)
            # A fault of no GPU in particular is in the summary alone.
            summary = test.get("test_summary") or {}
            if _word(summary) in ("fail", "warn") and _word(summary) not in map(_word, test["results"]):
                yield _part(str(test["name"]), summary)


def _part(name: str, result: Mapping[str, Any]) -> PartResult:
    word = _word(result)
    status = _STATUS.get(word, Status.UNKNOWN)
    errors = result.get("warnings") or []
    errors = errors if isinstance(errors, list) else [errors]
    severities = {error.get("error_severity") if isinstance(error, Mapping) else None for error in errors}
    if status is Status.FAIL and errors and severities <= _WORKS:
        status = Status.WARN
    messages = [str(error.get("warning", "")) if isinstance(error, Mapping) else str(error) for error in errors]
    info = result.get("info") or ""
    messages = messages or ([str(each) for each in info] if isinstance(info, list) else [str(info)])
    text = " ".join(" ".join(filter(None, messages)).split())[:_LONGEST]
    return PartResult(status, f"{name}: {text or word}")


def _word(result: Mapping[str, Any]) -> str:
    return str(result.get("status", "")).lower()
