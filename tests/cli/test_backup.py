"""What `backup` and `restore` print and refuse; the library's methods are doubles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cluster.backup import BackupOperations
from gpucluster.errors import InputError
from gpucluster.operations.backup import Restored
from gpucluster.operations.scheduled_backups import FetchedBackup, ScheduledBackup
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_controller

NAMES = ("demo-20260102T023000Z.tar.gz.cms", "demo-20260101T023000Z.tar.gz.cms")
FOUND = (
    ScheduledBackup(NAMES[0], "2026-01-02T02:30:00Z", 12345),
    ScheduledBackup(NAMES[1], "2026-01-01T02:30:00Z", 99),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_controller(tmp_path, "demo-controller")
    (tmp_path / "cluster.yml").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BackupOperations, "scheduled", lambda _self: FOUND)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.mark.usefixtures("folder")
def test_backups_are_listed_with_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("backup", "--list")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"2026-01-02T02:30:00Z  12345 bytes  {NAMES[0]}",
        f"2026-01-01T02:30:00Z     99 bytes  {NAMES[1]}",
    ]
    data = json.loads(run("backup", "--list", "--output", "json").stdout.splitlines()[-1])["data"]
    assert data == {"command": "backup", "backups": [each.to_dict() for each in FOUND]}
    monkeypatch.setattr(BackupOperations, "scheduled", lambda _self: ())
    assert run("backup", "--list").output == "The controller has made no backup yet\n"


@pytest.mark.usefixtures("folder")
def test_one_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path | None]] = []

    def fetch(_self: BackupOperations, name: str, path: Path | None) -> FetchedBackup:
        asked.append((name, path))
        return FetchedBackup(path or Path(NAMES[0]), FOUND[0])

    monkeypatch.setattr(BackupOperations, "fetch", fetch)
    done = run("backup", "--fetch", "latest")
    assert (done.exit_code, done.output) == (0, f"{NAMES[0]} written: {NAMES[0]}, encrypted\n")
    assert run("backup", "--fetch", NAMES[0], "x.cms").output == f"x.cms written: {NAMES[0]}, encrypted\n"
    assert asked == [("latest", None), (NAMES[0], Path("x.cms"))]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", [("--list", "--fetch", "latest"), ("--list", "x.cms")])
def test_a_list_is_a_list_alone(words: tuple[str, ...]) -> None:
    done = run("backup", *words)
    assert (done.exit_code, "--list has no --fetch and no FILE" in done.output) == (2, True)


@pytest.mark.usefixtures("folder")
def test_a_restore_passes_the_key_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, Path | None, bool]] = []

    def restore(_self: BackupOperations, path: Path, *, key: Path | None, force: bool) -> Restored:
        asked.append((path, key, force))
        if key is None:
            raise InputError("the backup is encrypted", where=str(path))
        return Restored(1, 2, None, "/var/lib/x")

    monkeypatch.setattr(BackupOperations, "restore", restore)
    assert run("restore", "x.cms", "--key", "backup_key.pem").exit_code == 0
    refused = run("restore", "x.cms")
    assert (refused.exit_code, "the backup is encrypted" in refused.output) == (2, True)
    assert asked == [(Path("x.cms"), Path("backup_key.pem"), False), (Path("x.cms"), None, False)]
