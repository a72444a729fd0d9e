"""Records on their way, and on the controller."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.job_records import JobRecordFolder, load, of_job
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.record import queue


def record(job: str = "12", node: str = "compute-1", started: float = 1000.0, **more: Any) -> dict[str, Any]:
    return {"job_id": job, "node": node, "started": started, "devices": [], "changes": [], "notes": [], **more}


class Controller:
    """A double of the controller: it keeps all."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def __call__(self, text: str) -> bool:
        self.got.append(json.loads(text)["job_id"])
        return True


def test_what_could_not_be_sent_goes_with_the_next_one_in_order(tmp_path: Path) -> None:
    def away(_text: str) -> bool:
        raise Failed("no answer")

    queue.put(record("1"), tmp_path)
    assert queue.send_all(away, tmp_path, seconds=0) == 1
    queue.put(record("2"), tmp_path)
    controller = Controller()
    assert queue.send_all(controller, tmp_path, seconds=5) == 0
    assert controller.got == ["1", "2"]


def test_what_the_controller_never_takes_keeps_nothing_up(tmp_path: Path) -> None:
    got = []

    def send(text: str) -> bool:
        if json.loads(text)["job_id"] == "1":
            raise Refused("no record")
        got.append(text)
        return True

    queue.put(record("1"), tmp_path)
    queue.put(record("2"), tmp_path)
    assert queue.send_all(send, tmp_path, seconds=5) == 0
    assert len(got) == 1


def test_a_controller_that_is_busy_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_WAIT", (0.0, 0.0))
    answers = [False, True]
    queue.put(record(), tmp_path)
    assert queue.send_all(lambda _text: answers.pop(0), tmp_path, seconds=60) == 0


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MOST", 3)
    for job in range(1, 6):
        queue.put(record(str(job)), tmp_path)
    assert [json.loads(file.read_text())["job_id"] for file in sorted(tmp_path.glob("*.json"))] == ["3", "4", "5"]
    for file in tmp_path.glob("*.json"):
        os.utime(file, (0, 0))
    controller = Controller()
    assert queue.send_all(controller, tmp_path, seconds=5) == 0
    assert controller.got == []


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
