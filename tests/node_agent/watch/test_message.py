"""What a node reports of its jobs: it is bounded, checked, and of that node alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.watch import kept, message
from gpucluster.node_agent.watch.__main__ import JobReporter
from gpucluster.node_agent.watch.judge import JobActivity

SEEN = kept.ObservedJob("7", "hung", 40.0, "rank 1\x1b is behind", "1", 9, "gpu-1", "AllReduce", {"0": 60.0, "1": 30.0})


def sent(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(message.written("gpu-1", [SEEN], 100.0)))[message.KIND]
    found["jobs"][0].update(changed)
    return found


def test_what_is_written_is_read() -> None:
    assert message.read(sent(), "gpu-1") == [
        message.ReportedJob("7", JobActivity.HUNG, 60.0, "rank 1  is behind", "1", 9, "gpu-1", 2, 90.0)
    ]


def test_where_the_stacks_are_is_reported_and_a_node_of_before_does_not_report_them() -> None:
    raw = json.loads(json.dumps(message.written("gpu-1", [SEEN], 100.0, {"7": "/home/a\x1b/x"})))[message.KIND]
    assert message.read(raw, "gpu-1")[0].stacks == "/home/a /x"
    del raw["jobs"][0]["stacks"]
    assert message.read(raw, "gpu-1")[0].stacks == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"job_id": "7;x"}, {"job_id": 7}, {"job_id": ""}, {"state": "bad"}, {"age": -1}, {"age": float("nan")},
        {"age": "1"}, {"words": None}, {"host": "a b"}, {"rank": "1\n"}, {"pid": -1}, {"pid": True}, {"idle": 1000},
        {"idle_s": 1e12}, {"stacks": None},
    ],
)  # fmt: skip
def test_anything_else_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        message.read(sent(**changed), "gpu-1")


@pytest.mark.parametrize(
    "raw", [None, [], {"node": "gpu-1"}, {"node": "gpu-1", "jobs": [1]}, {"node": "gpu-1", "jobs": [{}] * 257}]
)
def test_what_is_not_a_message_is_refused(raw: Any) -> None:
    with pytest.raises(Refused):
        message.read(raw, "gpu-1")


@pytest.mark.parametrize("owner", ["gpu-2", ""])
def test_a_node_speaks_for_itself_alone(owner: str) -> None:
    with pytest.raises(Refused):
        message.read(sent(), owner)


class Node:
    """A node whose watcher has written a file."""

    def __init__(self, folder: Path) -> None:
        self.file, self.now, self.sent = folder / "jobs.json", 100.0, list[Any]()
        self.fault = False
        self.reporter = JobReporter(self.send, self.file, lambda: self.now, "gpu-1")

    def send(self, text: str) -> bool:
        if self.fault:
            raise Failed("the controller is away")
        self.sent.append([each["state"] for each in json.loads(text)[message.KIND]["jobs"]])
        return True

    def sees(self, *states: str, later: float = 15.0) -> None:
        self.now += later
        kept.write([SEEN._replace(state=state, idle={}) for state in states], self.now, self.file)
        self.reporter.look()


def test_changes_are_reported_at_once_and_what_does_not_work_every_minute(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.reporter.look()
    assert node.sent == []  # there is no watcher yet
    for state in ("working", "working", "hung", "hung"):
        node.sees(state)
    assert node.sent == [["working"], ["hung"]]
    node.sees("hung", later=60)
    assert node.sent[2:] == [["hung"]]
    node.sees("working")
    node.sees("working", later=600)
    node.sees()
    assert node.sent[3:] == [["working"], []]


def test_a_watcher_that_has_stopped_reports_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.sees("hung")
    node.now += 120
    node.reporter.look()
    assert node.sent == [["hung"], []]


def test_what_could_not_be_reported_is_reported_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(tmp_path)
    node.fault = True
    node.sees("hung")
    node.sees("hung")
    node.fault = False
    node.sees("hung")
    assert node.sent == [["hung"]]
    assert capsys.readouterr().err == "the controller is not told: the controller is away\n"
