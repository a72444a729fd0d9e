"""What is reported when the server of the local cloud does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.localcloud import control


def test_the_last_lines_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "server.log").write_text("the reason\n")
    assert control._start_failure(tmp_path, "it ended").hint == "The last lines of its log:\n  the reason"


def test_an_empty_log(tmp_path: Path) -> None:
    hint = control._start_failure(tmp_path, "it ended").hint
    assert "Its log is empty. Start it by hand to see why: " in hint
    assert f"-m gpucluster.localcloud.server --home {tmp_path}" in hint


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_LEAST_SPACE", 1 << 60)
    fault = control._start_failure(tmp_path, "it ended")
    assert str(fault) == f"it ended: the disk is full ({tmp_path}). Free some space and run the same command again"
