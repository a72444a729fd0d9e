"""Folders of ours on the home share: a mounted tmpfs. tests/security/test_root_on_the_share.py attacks them."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.controller import share as program
from gpucluster.node_agent.errors import Failed
from tests.controller.jobs.share_harness import share


@pytest.fixture
def place() -> Iterator[Path]:
    with share("1m") as mounted:
        yield mounted


def put(place: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, folder: str = ".verify") -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    return program.main(["put", str(place), folder, "script"])


def test_a_file_is_there_for_all_to_read_and_is_replaced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(place, b"one\n", monkeypatch) == put(place, b"\0two", monkeypatch) == 0
    file = place / ".verify" / "script"
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"\0two", 0o644)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    assert os.listdir(file.parent) == ["script"]


def test_a_folder_is_removed_and_may_be_gone_already(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(place, b"one", monkeypatch) == 0
    for _ in range(2):
        assert program.main(["remove", str(place), ".verify"]) == 0
    assert os.listdir(place) == []


@pytest.mark.parametrize("kind", ["group", "others", "user", "link", "file"])
def test_a_folder_of_others_gets_nothing(
    kind: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = place / ".verify"
    if kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod({"group": 0o775, "others": 0o757, "user": 0o755}[kind])
        os.chown(folder, 65534 if kind == "user" else 0, -1)
    assert put(place, b"one", monkeypatch) == 1
    assert "is not a directory that only root can write to" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_the_share_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert put(tmp_path, b"one", monkeypatch) == 1
    assert f"{tmp_path} is not mounted here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_folders_below_each_other_are_made_only_where_that_is_asked_for(place: Path) -> None:
    folders = (place / "images", place / "images" / ".parts")
    with pytest.raises(FileNotFoundError), program.opened(place, *folders, create=False):
        pass
    with program.opened(place, *folders) as last:
        assert last.path == folders[1]
    with program.opened(place, *folders, create=False) as last:
        assert last.names() == []


def test_what_lies_on_the_way_to_a_folder_must_be_there(place: Path) -> None:
    with pytest.raises(FileNotFoundError), program.opened(place, place / "none" / "images"):
        pass
    (place / "some").symlink_to(place)
    with pytest.raises((OSError, Failed)), program.opened(place, place / "some" / "images"):
        pass
