"""Preflight of a rack: its GPU memory fabric works, and has hosts for the nodes that are yet to be launched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.preflight.evaluate import evaluate
from gpucluster.preflight.facts import ExistingInstance, MemoryFabric, Unknown
from tests.preflight.preflight_facts import AD1, ALL, PERMANENT, desired, good, refused

SHAPE = "BM.GPU.GB200.4"
RACK = (
    *PERMANENT,
    ("shape: BM.GPU.H100.8", f"shape: {SHAPE}"),
    ("count: 2\n", "count: 2\n    memory_fabric_id: ocid1.computegpumemoryfabric.oc1.iad.a\n"),
)
WHOLE = MemoryFabric("AVAILABLE", "HEALTHY", 18, 18)


def found(folder: Path, fabric: MemoryFabric | Unknown, *instances: ExistingInstance) -> list[tuple[str, str]]:
    shapes = {AD1: ALL | {SHAPE}}
    facts = good(shapes=shapes, memory_fabrics={"h100": fabric}, instances=instances)
    findings = evaluate(desired(folder, *RACK), facts)
    return [(each.level, each.reason) for each in findings if each.check == "memory fabric"]


def test_a_whole_rack_is_right(tmp_path: Path) -> None:
    assert found(tmp_path, WHOLE) == []


@pytest.mark.parametrize(
    ("fabric", "level", "words"),
    [
        (replace(WHOLE, state="DEGRADED"), "error", "is DEGRADED"),
        (replace(WHOLE, available=1), "error", "has 1 of 18 hosts available, and 2 are to be launched"),
        (replace(WHOLE, health="UNHEALTHY"), "warning", "is UNHEALTHY"),
        (refused("memory fabric"), "error", "does not exist, or this user may not see it"),
    ],
)
def test_what_is_wrong_with_a_rack(fabric: MemoryFabric | Unknown, level: str, words: str, tmp_path: Path) -> None:
    ((seen, reason),) = found(tmp_path, fabric)
    assert seen == level
    assert words in reason


def test_nodes_that_run_need_no_host(tmp_path: Path) -> None:
    nodes = [ExistingInstance(f"h100-{number}", SHAPE, AD1, pool="h100") for number in (1, 2)]
    assert found(tmp_path, replace(WHOLE, state="OCCUPIED", available=0), *nodes) == []
    assert found(tmp_path, replace(WHOLE, state="DEGRADED"), *nodes) == []
