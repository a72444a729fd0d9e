"""The command `gpucluster-backup`: its output, its exit status, and what it reports where it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from gpucluster.controller.backup import __main__ as program
from gpucluster.controller.backup import directory, restore
from gpucluster.controller.backup import site as sites
from gpucluster.controller.users.config import Config
from gpucluster.node_agent import errors
from tests.controller.backup.contents import LDIF
from tests.controller.users.harness import CONFIG, SUFFIX


class Entries(directory.Directory):
    """A directory with one user. It can't be replaced: test_restore.py has one that can."""

    def dump(self, file: Path) -> None:
        file.write_text(LDIF)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sites.Site:
    """A controller without accounting and without a schedule."""
    site = sites.Site("demo", Entries(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody"), None)
    monkeypatch.setattr(sites, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(sites, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(sites.Site, "load", classmethod(lambda _cls, _file: site))
    # pytest runs in the same process after that.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    return site


def failure(capsysbinary: pytest.CaptureFixture[bytes]) -> dict[str, str]:
    """The error that was reported, and nothing on standard output."""
    output, lines = capsysbinary.readouterr()
    assert output == b""
    reported: dict[str, str] = json.loads(lines.splitlines()[-1])["error"]
    return reported


def test_a_backup_comes_on_standard_output(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert program.main(["create"]) == 0
    with tarfile.open(fileobj=io.BytesIO(capsysbinary.readouterr().out)) as archive:
        assert archive.getnames() == ["manifest.json", "directory.ldif"]
        manifest = archive.extractfile("manifest.json")
        assert manifest
        assert json.load(manifest)["cluster"] == "demo"
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_is_not_a_backup_is_refused_before_anything_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(Config, "load", classmethod(lambda _cls: Config.parse(CONFIG)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"not a backup")))
    monkeypatch.setattr(restore, "is_active", lambda _unit: True)
    assert program.main(["restore"]) == errors.Refused("x").status
    reported = failure(capsysbinary)
    assert "this is not a backup" in reported["message"]
    assert reported["hint"] == "Choose another file"
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_second_one_at_a_time_is_refused(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with sites.exclusive():
        assert program.main(["create"]) == 1
        assert "another backup or restore runs" in failure(capsysbinary)["message"]
        # slapd is started by the restore that runs: there is nothing to recover.
        assert program.main(["recover"]) == 0


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (errors.Failed("slapcat: it broke", "Look at slapd"), 1, "slapcat: it broke"),
        (OSError(28, "No space left on device", "/var/lib/x"), 1, "/var/lib/x: No space left on device"),
        (OSError(28, "No space left on device"), 1, "the backup: No space left on device"),
        (KeyboardInterrupt(), 1, "interrupted"),
    ],
)
def test_an_error_is_one_line_of_json(
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    def dump(_self: object, _file: Path) -> None:
        raise error

    monkeypatch.setattr(Entries, "dump", dump)
    assert program.main(["create"]) == status
    assert failure(capsysbinary)["message"] == message


@pytest.mark.parametrize("words", [["scheduled"], ["list"], ["fetch", "demo-20200101T023000Z.tar.gz.cms"]])
def test_without_a_schedule_its_commands_are_refused(
    words: list[str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert program.main(words) == 2
    assert "makes no backups on a schedule" in failure(capsysbinary)["message"]


def test_what_is_not_a_command_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["delete"])
