"""What Slurm's commands print about nodes, by scripts in their place; test_measuring_slurm.py has a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.measure import slurm
from tests.doubles.commands import Commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(slurm, "_POLL", 0)
    return Commands(tmp_path, monkeypatch)


@pytest.mark.parametrize("passing", ["completing", "planned"])
def test_nodes_that_an_ended_job_has_left_are_awaited(passing: str, commands: Commands, tmp_path: Path) -> None:
    later = tmp_path / "asked before"
    commands.add(
        "sinfo", f'if test -e "{later}"; then echo "a-1|idle|none"; else touch "{later}"; echo "a-1|{passing}|none"; fi'
    )
    assert slurm.nodes() == ["a-1|idle|none"]
    assert len(commands.calls("sinfo")) == 2


def test_a_node_that_stays_planned_is_reported_so(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_SETTLE_SECONDS", 0)
    commands.prints("sinfo", "a-1|planned|none\na-2|completing|none")
    assert slurm.nodes() == ["a-1|planned|none", "a-2|completing|none"]


def test_the_reason_of_a_node_does_not_count(commands: Commands) -> None:
    commands.prints("sinfo", "a-1|drained|completing\na-2|mixed|none")
    assert len(slurm.nodes()) == 2
    assert len(commands.calls("sinfo")) == 1
