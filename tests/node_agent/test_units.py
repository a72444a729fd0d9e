"""Whether a unit runs. systemctl is a double, with the exit codes of its manual page."""

from __future__ import annotations

import pytest

from gpucluster.node_agent import programs, units
from gpucluster.node_agent.errors import Failed


@pytest.mark.parametrize(
    ("status", "word", "expected"),
    [
        (0, "active", True),
        (3, "activating", True),
        (3, "inactive", False),
        (3, "failed", False),
        (4, "inactive", False),
    ],
)
def test_a_unit_that_starts_is_taken_for_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, status: int, word: str, expected: bool
) -> None:
    monkeypatch.setattr(programs, "call", lambda argv: programs.Completed(argv, status, f"{word}\n", ""))
    assert units.is_active("mariadb.service") is expected


@pytest.mark.parametrize("status", [1, 124, programs.MISSING])
def test_without_an_answer_of_systemd_a_unit_is_not_taken_for_stopped(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(programs, "call", lambda argv: programs.Completed(argv, status, "", "Connection timed out"))
    with pytest.raises(Failed, match=r"whether mariadb.service runs: Connection timed out"):
        units.is_active("mariadb.service")
