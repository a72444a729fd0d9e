"""Folders of ours on the home share: a mounted tmpfs. tests/security/test_root_on_the_share.py attacks them."""

from __future__ import annotations

import os
import stat
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


def put(place: Path, content: bytes) -> None:
    program.put(place, ".verify", "script", content)


def test_a_file_is_there_for_all_to_read_and_is_replaced(place: Path) -> None:
    put(place, b"one\n")
    put(place, b"\0two")
    file = place / ".verify" / "script"
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"\0two", 0o644)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    assert os.listdir(file.parent) == ["script"]


def test_a_folder_is_removed_and_may_be_gone_already(place: Path) -> None:
    put(place, b"one")
    for _ in range(2):
        program.remove(place, ".verify")
    assert os.listdir(place) == []


@pytest.mark.parametrize("kind", ["group", "others", "user", "link", "file"])
def test_a_folder_of_others_gets_nothing(kind: str, place: Path, tmp_path: Path) -> None:
    folder = place / ".verify"
    if kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod({"group": 0o775, "others": 0o757, "user": 0o755}[kind])
        os.chown(folder, 65534 if kind == "user" else 0, -1)
    with pytest.raises(Failed, match="is not a directory that only root can write to"):
        put(place, b"one")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_the_share_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=f"{tmp_path} is not mounted here"):
        put(tmp_path, b"one")
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
