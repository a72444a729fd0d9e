"""A backup needs a new file, and a restore a good one. What they contain is in tests/operations/test_backup.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import InputError
from gpucluster.lifecycle.cluster_runs import ClusterRuns
from gpucluster.operations.scheduled_backups import ScheduledBackup, ScheduledBackups


def test_a_backup_replaces_no_file_and_sends_no_request(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "demo.tar.gz"
    file.write_text("mine")
    with pytest.raises(InputError):
        cluster.backup.create(file)
    assert file.read_text() == "mine"


def test_a_restore_is_a_run(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(_runs: ClusterRuns, command: str) -> None:
        commands.append(command)
        raise InputError("refused by the test")

    monkeypatch.setattr(ClusterRuns, "run", run)
    with pytest.raises(InputError, match="refused by the test"):
        cluster.backup.restore(tmp_path / "demo.tar.gz")
    assert commands == ["restore"]


def test_backups_of_the_controller_are_asked_for_by_name(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def present(_self: ScheduledBackups) -> tuple[ScheduledBackup, ...]:
        asked.append("present")
        return ()

    monkeypatch.setattr(ScheduledBackups, "present", present)
    monkeypatch.setattr(ScheduledBackups, "fetch", lambda _self, name, path: asked.append((name, path)))
    assert cluster.backup.scheduled() == ()
    cluster.backup.fetch()
    cluster.backup.fetch("demo-1", tmp_path)
    assert asked == ["present", ("latest", None), ("demo-1", tmp_path)]
