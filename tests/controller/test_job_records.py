"""Records of jobs on the controller: each run by itself, within limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.job_records import JobRecordFolder, load, of_job
from gpucluster.node_agent.errors import Refused


def record(job: str = "12", node: str = "compute-1", started: float = 1000.0, **more: Any) -> dict[str, Any]:
    return {"job_id": job, "node": node, "started": started, "devices": [], "changes": [], "notes": [], **more}


def test_runs_of_one_number_do_not_mix(tmp_path: Path) -> None:
    kept = JobRecordFolder(tmp_path)
    for started in (1000.0, 2000.0, 2000.0):
        assert kept.keep(record(started=started))
    assert kept.keep(record(node="compute-2"))
    assert [(each["node"], each["started"]) for each in of_job("12", tmp_path)] == [
        ("compute-1", 1000.0), ("compute-1", 2000.0), ("compute-2", 1000.0),
    ]  # fmt: skip
    for started in range(3000, 3020):
        kept.keep(record(started=float(started)))
    assert len(load(tmp_path / "12" / "compute-1.json")) == 5
    assert of_job("13", tmp_path) == []


@pytest.mark.parametrize(
    "rubbish",
    [
        None, [], {}, record("../x"), record(node="../x"), record(started=float("nan")), record(started="soon"),  # type: ignore[arg-type]
        record(changes={}), record(devices=[1] * 5000), {**record(), "job_id": 12},
    ],
)  # fmt: skip
def test_what_is_not_a_record_is_not_kept(rubbish: Any, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        JobRecordFolder(tmp_path).keep(rubbish)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_jobs_go_first(tmp_path: Path) -> None:
    kept = JobRecordFolder(tmp_path, limits=(2, 1 << 20, 1e12))
    for job in ("1", "2", "3"):
        kept.keep(record(job))
        os.utime(tmp_path / job / "compute-1.json", (int(job), int(job)))
    kept.prune()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2", "3"]
    JobRecordFolder(tmp_path, wall=lambda: 1e9, limits=(9, 1 << 20, 3600.0)).prune()
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_sends_without_end_is_put_off(tmp_path: Path) -> None:
    now = [0.0]
    kept = JobRecordFolder(tmp_path, clock=lambda: now[0])
    answers = [kept.keep(record()) for _ in range(120)]
    assert answers.count(True) == 100
    assert kept.keep(record(node="compute-2"))
    now[0] = 10.0
    assert kept.keep(record())


def test_a_file_that_was_cut_off_is_none(tmp_path: Path) -> None:
    kept = JobRecordFolder(tmp_path)
    kept.keep(record())
    (tmp_path / "12" / "compute-1.json").write_text('{"runs": [')
    assert of_job("12", tmp_path) == []
    assert kept.keep(record(started=5.0))
    assert len(of_job("12", tmp_path)) == 1
