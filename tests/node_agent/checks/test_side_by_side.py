"""Measurements side by side, each within its limit, as real processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent.checks import side_by_side
from gpucluster.node_agent.checks.model import Missing
from gpucluster.node_agent.checks.side_by_side import Task
from tests.doubles.clock import LateTime
from tests.node_agent.processes import LIMIT, LONG, Note, alive, until_gone
from tests.waiting import hang


def dies(_seconds: float) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(note: Note) -> Task:
    """A measurement that never ends. In its process a real clock goes on, and ends it some time after its limit."""

    def measure(_seconds: float) -> None:
        note.write()
        hang()

    return Task(measure, LIMIT)


def test_measurements_are_made_side_by_side_each_within_its_limit(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    found = side_by_side.run(
        {
            "sleeps": hanging(note),
            "dies": Task(dies, 1e6),
            "good": Task(lambda seconds: {"seconds": seconds, "list": [1]}, 1e6),
            "missing": Task(lambda _seconds: Missing("no tool"), 1e6),
            "large": Task(lambda _seconds: "x" * 1_000_000, 1e6),
            "strange": Task(lambda _seconds: {1, 2}, 1e6),
        }
    )
    assert found.pop("large") == "x" * 1_000_000
    assert found == {
        "sleeps": Missing(f"sleeps gave no answer within {LIMIT:g} s"),
        "dies": Missing("the measurement ended without an answer"),
        "good": {"seconds": 1e6, "list": [1]},
        "missing": Missing("no tool"),
        "strange": Missing("the measurement ended without an answer"),
    }
    until_gone(note.pid())


def test_a_tool_that_hangs_does_not_outlive_the_measurement_that_asked_it(
    monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    """On a busy node the measurement is ended before it has noticed its own limit."""
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    tool = ["sh", "-c", f"sleep 600 & echo $! > {note.file}; wait"]
    found = side_by_side.run({"tool": Task(lambda _seconds: programs.ask(tool, LONG, 1000), LIMIT)})
    assert found == {"tool": Missing(f"tool gave no answer within {LIMIT:g} s")}
    until_gone(note.pid())


def test_a_limit_of_a_measurement_is_in_seconds() -> None:
    found = side_by_side.run({"sleeps": Task(lambda _seconds: hang(), 0.1)})
    # Its own process may have noticed it first.
    assert isinstance(found["sleeps"], Missing)


def test_a_measurement_that_the_kernel_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    assert isinstance(side_by_side.run({"sleeps": hanging(note)})["sleeps"], Missing)
    assert alive(note.pid())
