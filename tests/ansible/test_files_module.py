"""module_utils/gpucluster_files.py on a temporary directory."""

from __future__ import annotations

import base64
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

gpucluster_files = load("module_utils/gpucluster_files.py")
BLOCK = "# BEGIN gpucluster\n{}\n# END gpucluster\n"


def run(path: Path, *, check_mode: bool = False, **options: Any) -> Any:
    """Work on one entry as AnsibleModule would pass it."""
    item = {name: option.get("default") for name, option in gpucluster_files.FILE_SPEC.items()}
    work = gpucluster_files.Files(FakeModule(check_mode=check_mode))
    work.apply(item | {"path": str(path)} | options)
    return work


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_file_gets_its_content_once(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    assert run(file, content="one\n").paths == [str(file)]
    assert (file.read_text(), mode(file)) == ("one\n", 0o644)
    assert run(file, content="one\n").paths == []


def test_check_mode_only_reports_what_it_would_do(tmp_path: Path) -> None:
    file = tmp_path / "file"
    work = run(file, content="one\n", check_mode=True)
    assert work.paths == [str(file)]
    assert work.diff[0]["after"] == "one\n"
    assert not file.exists()


def test_a_mode_is_kept_unless_one_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "file"
    run(file, content="one", new_mode="0600")
    assert mode(file) == 0o600
    file.chmod(0o640)
    assert run(file, content="one", new_mode="0600").paths == []
    run(file, content="two", new_mode="0600")
    assert mode(file) == 0o640
    assert run(file, content="two", mode="0400").paths == [str(file)]
    assert mode(file) == 0o400


def test_a_secret_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    replace = Path.replace

    def watch(self: Path, target: Path) -> Path:
        seen.append(mode(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    file = tmp_path / "key"
    work = run(file, content_base64=base64.b64encode(b"\0secret").decode(), mode="0400")
    assert file.read_bytes() == b"\0secret"
    assert seen == [0o400]
    assert work.diff == []


def test_random_bytes_are_made_once(tmp_path: Path) -> None:
    file = tmp_path / "key"
    run(file, random_bytes=32, mode="0400")
    first = file.read_bytes()
    assert len(first) == 32
    assert run(file, random_bytes=32, mode="0400").paths == []
    assert file.read_bytes() == first


def test_a_copy_follows_its_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.write_text("one")
    assert run(copy, copy_of=str(original)).paths == [str(copy)]
    assert run(copy, copy_of=str(original)).paths == []
    original.write_text("two")
    assert run(copy, copy_of=str(original)).paths == [str(copy)]
    assert copy.read_text() == "two"


@pytest.mark.parametrize(
    ("before", "at", "after"),
    [
        ("", "bottom", BLOCK.format("x")),
        ("a\n", "bottom", "a\n" + BLOCK.format("x")),
        ("a", "bottom", "a\n" + BLOCK.format("x")),
        ("a\n", "top", BLOCK.format("x") + "a\n"),
        ("a\n" + BLOCK.format("old\nolder") + "b\n", "top", "a\n" + BLOCK.format("x") + "b\n"),
    ],
)
def test_a_block_leaves_the_rest_alone(tmp_path: Path, before: str, at: str, after: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(before)
    run(file, block="x", at=at)
    assert file.read_text() == after
    assert run(file, block="x", at=at).paths == []


def test_a_file_can_be_edited(tmp_path: Path) -> None:
    file = tmp_path / "nsswitch.conf"
    file.write_text("passwd: files\ngroup: files sss\nhosts: files dns\n")
    options = {"regexp": r"^((?:passwd|group):(?!.*\bsss\b).*?)[ \t]*$", "with": r"\1 sss"}
    run(file, replace=options)
    assert file.read_text() == "passwd: files sss\ngroup: files sss\nhosts: files dns\n"
    assert run(file, replace=options).paths == []


def test_where_there_is_no_file_nothing_is_replaced(tmp_path: Path) -> None:
    assert run(tmp_path / "file", replace={"regexp": "a", "with": "b"}).paths == []
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_written_through_and_can_be_made(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("one")
    assert run(link, link=str(real)).paths == [str(link)]
    assert run(link, link=str(real)).paths == []
    run(link, content="two")
    assert link.is_symlink()
    assert real.read_text() == "two"


def test_a_directory_gets_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    owner = pwd.getpwuid(os.geteuid()).pw_name
    assert run(place, directory=True, mode="0700", owner=owner).paths == [str(place)]
    assert mode(place) == 0o700
    assert run(place, directory=True, mode="0700", owner=owner).paths == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of others")
def test_a_trusted_directory_is_roots_alone(tmp_path: Path) -> None:
    """On a scratch disk, where all users may write and no user may move the files of another."""
    disk = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        disk.chmod(0o1777)
        place = disk / "containers"
        assert run(place, directory=True, trusted=True).paths == [str(place)]
        assert mode(place) == 0o755
        assert run(place, directory=True, trusted=True).paths == []

        place.chmod(0o775)
        with pytest.raises(ModuleFailed, match=r"other users than root can write to .*containers \(mode 0775\)"):
            run(place, directory=True, trusted=True)
        place.chmod(0o755)
        os.chown(place, 10001, 0)
        with pytest.raises(ModuleFailed, match="belongs to user 10001"):
            run(place, directory=True, trusted=True, owner="root", check_mode=True)
        place.rmdir()
        place.symlink_to(tmp_path)
        with pytest.raises(ModuleFailed, match="is not a directory"):
            run(place, directory=True, trusted=True)
        place.unlink()
        disk.chmod(0o777)
        with pytest.raises(ModuleFailed, match="other users than root can write to"):
            run(place, directory=True, trusted=True)
        assert not place.exists()
    finally:
        shutil.rmtree(disk)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "exactly one"),
        ({"content": "a", "block": "b"}, "exactly one"),
        ({"content": "a", "owner": "nobody-has-this-name"}, "package installed"),
        ({"content_base64": "?"}, "content_base64"),
    ],
)
def test_what_can_not_be_done_is_reported(tmp_path: Path, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ModuleFailed, match=word):
        run(tmp_path / "file", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_a_directory_is_not_removed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ModuleFailed, match="is not a directory"):
        run(file, directory=True)


def test_what_a_file_of_the_image_allows_all_users_is_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "sssd.conf"
    path.write_text("the image's")
    path.chmod(0o644)
    options: dict[str, Any] = {"content": "ours", "new_mode": "0600", "widest_mode": "0640"}
    assert run(path, **options).paths == [str(path)]
    assert mode(path) == 0o640
    # What its program makes of it within that stays.
    path.chmod(0o600)
    assert run(path, **options).paths == []
    assert mode(path) == 0o600


def test_what_was_there_before_comes_back(tmp_path: Path) -> None:
    changed, new, gone, link = (tmp_path / name for name in ("changed", "new", "gone", "link"))
    for file in (changed, gone):
        file.write_text("before")
        file.chmod(0o640)
        os.utime(file, (1000, 1000))
    link.symlink_to("before")
    wanted: list[tuple[Path, dict[str, Any]]]
    wanted = [(changed, {"content": "after", "mode": "0600"}), (new, {"content": "after"})]
    wanted += [(gone, {"absent": True}), (link, {"link": "after"}), (tmp_path / "folder", {"directory": True})]
    work = gpucluster_files.Files(FakeModule())
    for path, options in wanted:
        item = {name: option.get("default") for name, option in gpucluster_files.FILE_SPEC.items()}
        item |= {"path": str(path)} | options
        assert "directory" in options or work.differs(item)
        work.apply(item)
        assert "directory" in options or not work.differs(item)
    assert [Path(path).name for path in work.restore()] == ["changed", "new", "gone", "link"]
    for file in (changed, gone):
        assert (file.read_text(), mode(file), file.stat().st_mtime) == ("before", 0o640, 1000)
    assert not new.exists()
    assert os.readlink(link) == "before"


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_new_file_can_be_written_beside_the_old_one(tmp_path: Path, check_mode: bool) -> None:
    old, copy = tmp_path / "old", tmp_path / "copy"
    for file in (old, copy):
        file.write_text("kept\n")
        file.chmod(0o600)
    item = {name: option.get("default") for name, option in gpucluster_files.FILE_SPEC.items()}
    work = gpucluster_files.Files(FakeModule(check_mode=check_mode))
    work.stage(item | {"path": str(old), "block": "added"}, copy)
    # sudo refuses a file with another mode.
    work.stage(item | {"path": str(tmp_path / "none"), "content": "x", "mode": "0440"}, tmp_path / "fresh")
    assert mode(tmp_path / "fresh") == 0o440
    assert (copy.read_text(), mode(copy)) == ("kept\n" + BLOCK.format("added"), 0o600)
    assert old.read_text() == "kept\n"
