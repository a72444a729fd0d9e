"""Work of root in folders of others: what one step can reach. tests/security/ attacks what is built on it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from gpucluster.node_agent.foreign_folder import Folder, Tree


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder, and beside it a file and a folder that must not change."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("theirs")
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def folder(place: Path) -> Iterator[Folder]:
    with Folder.open(place) as opened:
        yield opened


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


STEPS: dict[str, Callable[[Folder, str], Any]] = {
    "folder": lambda folder, name: folder.folder(name),
    "make": lambda folder, name: folder.make(name),
    "file": lambda folder, name: folder.file(name),
    "create": lambda folder, name: folder.create(name, 0o644),
    "appended": lambda folder, name: folder.appended(name),
    "write": lambda folder, name: folder.write(name, b"x", 0o644),
    "delete": lambda folder, name: folder.delete(name),
    "remove": lambda folder, name: folder.remove(name),
    "look": lambda folder, name: folder.look(name),
    "move": lambda folder, name: folder.move(name, folder, "new"),
}


@pytest.mark.parametrize("name", ["", ".", "..", "../victim", "a/b", "/etc/passwd", "a\0b"])
@pytest.mark.parametrize("step", STEPS)
def test_a_name_is_one_step(step: str, name: str, folder: Folder, place: Path) -> None:
    with pytest.raises(OSError, match="is not the name of a file"):
        STEPS[step](folder, name)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("step", ["folder", "file", "appended", "create", "make"])
def test_a_link_is_not_followed(step: str, folder: Folder, place: Path) -> None:
    target = place.parent / "victim" / ("" if step == "folder" else "file")
    (place / "link").symlink_to(target)
    with pytest.raises(OSError, match="link") as raised:
        STEPS[step](folder, "link")
    assert raised.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST)
    assert raised.value.filename == str(place / "link")
    assert (place.parent / "victim" / "file").read_text() == "theirs"


def test_the_folder_stays_the_same_when_its_path_leads_elsewhere(folder: Folder, place: Path) -> None:
    place.rename(place.parent / "moved")
    place.symlink_to(place.parent / "victim")
    folder.write("new", b"ours", 0o600)
    assert (place.parent / "moved" / "new").read_text() == "ours"
    assert os.listdir(place.parent / "victim") == ["file"]


def test_a_new_folder_has_its_mode_and_is_not_made_twice(folder: Folder, place: Path) -> None:
    with folder.make("new", 0o751) as made:
        made.write("file", b"x", 0o640)
        assert made.path == place / "new"
    assert (mode(place / "new"), mode(place / "new" / "file")) == (0o751, 0o640)
    with pytest.raises(FileExistsError):
        folder.make("new")
    assert folder.names() == ["new"]


def test_a_file_is_written_as_a_whole_in_the_place_of_a_link(folder: Folder, place: Path) -> None:
    (place / "file").symlink_to(place.parent / "victim" / "file")
    folder.write("file", b"ours", 0o644, owner=(os.geteuid(), os.getegid()))
    assert not (place / "file").is_symlink()
    assert ((place / "file").read_bytes(), mode(place / "file")) == (b"ours", 0o644)
    assert (place.parent / "victim" / "file").read_text() == "theirs"
    assert folder.names() == ["file"]


def test_a_file_that_can_not_be_put_in_its_place_leaves_nothing(folder: Folder, place: Path) -> None:
    (place / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        folder.write("file", b"ours", 0o644)
    assert folder.names() == ["file"]


def test_a_file_is_read_up_to_a_size(folder: Folder, place: Path) -> None:
    (place / "file").write_bytes(b"12345")
    assert folder.read("file", 5) == b"12345"
    with pytest.raises(OSError, match="has more than 4 bytes"):
        folder.read("file", 4)


@pytest.mark.parametrize("step", ["file", "appended"])
def test_a_pipe_is_not_a_file_and_does_not_block(step: str, folder: Folder, place: Path) -> None:
    os.mkfifo(place / "pipe")
    with pytest.raises(OSError, match="pipe"):
        STEPS[step](folder, "pipe")


def test_bytes_are_appended_to_a_file_of_its_owner(folder: Folder, place: Path) -> None:
    for part in (b"one", b"two"):
        with folder.appended("log") as stream:
            stream.write(part)
    assert ((place / "log").read_bytes(), mode(place / "log")) == (b"onetwo", 0o600)


def test_what_is_deleted_is_the_link_and_not_what_it_leads_to(folder: Folder, place: Path) -> None:
    (place / "tree" / "deep").mkdir(parents=True)
    (place / "tree" / "deep" / "link").symlink_to(place.parent / "victim")
    (place / "tree" / "file").touch()
    (place / "link").symlink_to(place.parent / "victim" / "file")
    for name in ("tree", "link", "nothing"):
        folder.remove(name)
    folder.delete("nothing")
    assert folder.names() == []
    assert (place.parent / "victim" / "file").read_text() == "theirs"


def test_a_tree_that_is_deeper_than_open_files_allow_is_deleted(folder: Folder, place: Path) -> None:
    deep = place / "tree"
    deep.mkdir()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    folder.remove("tree")
    assert folder.names() == []


def test_something_moves_into_another_folder_under_a_new_name(folder: Folder, place: Path) -> None:
    (place / "old").write_text("x")
    with folder.make("into") as into:
        folder.move("old", into, "new")
        assert into.names() == ["new"]
    assert folder.look("old") is None
    status = folder.look("into")
    assert status is not None
    assert stat.S_ISDIR(status.st_mode)


def test_folders_of_a_tree_are_created_where_that_is_asked_for(folder: Folder, place: Path) -> None:
    with Tree(folder, create=False) as tree, pytest.raises(FileNotFoundError):
        tree.folder(("a", "b"))
    with Tree(folder, create=True) as tree:
        tree.folder(("a", "b")).write("one", b"1", 0o644)
        tree.folder(("a", "b")).write("two", b"2", 0o644)
        tree.folder(()).write("top", b"0", 0o644)
        (place / "a" / "link").symlink_to(place.parent / "victim")
        with pytest.raises(OSError, match="link"):
            tree.folder(("a", "link"))
    assert sorted(os.listdir(place / "a" / "b")) == ["one", "two"]
    assert folder.names() == ["a", "top"]
    assert os.listdir(place.parent / "victim") == ["file"]
