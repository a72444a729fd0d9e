"""What is read of a node at the beginning and the end of a job, within a quarter of a second."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gpucluster.node_agent.record import node, snapshot
from tests.node_agent.record.node_tree import JOB, TAKE
from tests.waiting import PATIENCE_S, hang


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is whole, however busy this machine is."""
    monkeypatch.setattr(snapshot, "take", functools.partial(TAKE, seconds=PATIENCE_S))


def test_a_driver_that_hangs_costs_a_quarter_of_a_second_and_no_job(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "take", TAKE)
    monkeypatch.setattr(snapshot, "counters", lambda _root, _until: hang())
    node.begin(JOB, tmp_path / "jobs", str(root))
    record = node.end(JOB, "compute-1", tmp_path / "jobs", str(root))
    assert record is not None
    assert len(record["notes"]) == 2
    assert record["changes"] == []


def test_slow_devices_are_left_out_and_reported(root: Path) -> None:
    found = snapshot.counters(str(root), until=-1.0, clock=lambda: 0.0)
    assert (found["complete"], found["rdma"]) == (False, {})
    assert found["ethernet"] == {"eth0": {"rx_bytes": 5}}
