"""Which jobs slurmctld had accepted and not saved: by the times of its files."""

from __future__ import annotations

import os
from pathlib import Path

from gpucluster.node_agent.state_volume.unsaved_jobs import unsaved


def script(state: Path, job: int, second: int) -> Path:
    folder = state / f"hash.{job % 10}" / f"job.{job}"
    folder.mkdir(parents=True)
    os.utime(folder, (second, second))
    return folder


def test_jobs_that_came_after_the_queue_was_saved(tmp_path: Path) -> None:
    (tmp_path / "job_state").touch()
    os.utime(tmp_path / "job_state", (1000, 1000))
    script(tmp_path, 8, 999)
    later = {"9": script(tmp_path, 9, 1001), "12": script(tmp_path, 12, 1002)}
    script(tmp_path, 3, 1000)
    (tmp_path / "hash.3" / "job.x").mkdir()
    assert unsaved(tmp_path) == later
    assert list(unsaved(tmp_path)) == ["9", "12"]


def test_without_a_queue_nothing_is_known(tmp_path: Path) -> None:
    script(tmp_path, 8, 999)
    assert unsaved(tmp_path) == {}
    assert unsaved(tmp_path / "missing") == {}
