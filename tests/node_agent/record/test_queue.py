"""Records on their way to the controller."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.record import queue
from tests.waiting import PATIENCE_S


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
    assert queue.send_all(controller, tmp_path, seconds=PATIENCE_S) == 0
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
    assert queue.send_all(send, tmp_path, seconds=PATIENCE_S) == 0
    assert len(got) == 1


def test_a_controller_that_is_busy_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_WAIT", (0.0, 0.0))
    answers = [False, True]
    queue.put(record(), tmp_path)
    assert queue.send_all(lambda _text: answers.pop(0), tmp_path, seconds=PATIENCE_S) == 0


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MOST", 3)
    for job in range(1, 6):
        queue.put(record(str(job)), tmp_path)
    assert [json.loads(file.read_text())["job_id"] for file in sorted(tmp_path.glob("*.json"))] == ["3", "4", "5"]
    for file in tmp_path.glob("*.json"):
        os.utime(file, (0, 0))
    controller = Controller()
    assert queue.send_all(controller, tmp_path, seconds=PATIENCE_S) == 0
    assert controller.got == []
