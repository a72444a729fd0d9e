"""Judge of DCGM's diagnosis (`dcgmi diag -j`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpucluster.agent.checks.expected import NodeExpectation
from gpucluster.agent.checks.judges.parts import Part, sum_up
from gpucluster.agent.checks.model import Measurements, Outcome, Status

_STATUS: Mapping[str, Status] = {
    "pass": Status.PASS,
    "warn": Status.WARN,
    "fail": Status.FAIL,
    "skip": Status.SKIP,
    "notrun": Status.SKIP,
    "not run": Status.SKIP,
}


def judge(measurement: str) -> Callable[[Measurements, NodeExpectation, str], Outcome]:
    """The judge of the diagnosis that a measurement has."""

    def of_level(measured: Measurements, _expected: NodeExpectation, _subject: str) -> Outcome:
        parts = list(_results(measured[measurement]))
        if not any(part.status is not Status.SKIP for part in parts):
            return Outcome(Status.UNKNOWN, "DCGM has run no test")
        return sum_up(parts, f"{sum(part.status is Status.PASS for part in parts)} results of DCGM, all good")

    return of_level


def _results(answer: Mapping[str, Any]) -> Iterator[Part]:
    """One for each test and GPU. DCGM 3 numbers GPUs in `gpu_ids`, DCGM 4 has `entity_id`."""
    for category in answer["test_categories"]:
        for test in category["tests"]:
            for result in test["results"]:
                word = str(result.get("status", "")).lower()
                what = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
                said = result.get("warnings") or result.get("info") or ""
                text = f"{test['name']} {result.get('entity_group', 'GPU')} {what}: {str(said)[:200] or word}"
                yield Part(_STATUS.get(word, Status.UNKNOWN), text)
