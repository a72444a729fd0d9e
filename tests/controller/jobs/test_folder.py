"""The folder of a job, made with the rights of a real user on a real file system, whatever is in the way."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.jobs import folder
from gpucluster.node_agent.accounts import Account, account, work_as
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.jobs.share_harness import home, share
from tests.waiting import PATIENCE_S

FILES = folder.checked_files({"job.sbatch": {"text": "#!/bin/bash\n", "executable": True}, "a.py": {"text": "é"}})


@pytest.fixture
def owner() -> Iterator[Account]:
    with share("1m") as place:
        yield home(place)


def as_user(owner: Account, work: Callable[[], Any]) -> bytes:
    return work_as(owner, lambda: str(work()).encode(), seconds=PATIENCE_S, most=8 << 20)


def make(owner: Account) -> Path:
    return Path(as_user(owner, lambda: folder.make(Path(owner.home), "mpi", FILES, {"pool": "a"})).decode())


def test_the_files_are_the_users_own_and_two_in_a_second_do_not_meet(owner: Account) -> None:
    first, second = make(owner), make(owner)
    assert first != second
    assert first.parent == Path(owner.home) / folder.BASE
    for name, mode in (("job.sbatch", 0o700), ("a.py", 0o600), (folder.RECORD, 0o600)):
        found = (first / name).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (owner.uid, mode)
    assert json.loads((first / folder.RECORD).read_text())["pool"] == "a"


def test_a_link_in_the_home_leads_nowhere_that_the_user_may_not_go(owner: Account) -> None:
    trap = Path(owner.home).parent / "of-root"
    trap.mkdir(mode=0o755)
    (Path(owner.home) / folder.BASE).symlink_to(trap)
    with pytest.raises(Failed, match="Permission denied"):
        make(owner)
    assert list(trap.iterdir()) == []


def test_a_result_replaces_no_file_behind_a_link(owner: Account) -> None:
    place = make(owner)
    victim = Path(owner.home) / "mine"
    victim.write_text("mine")
    os.chown(victim, owner.uid, owner.gid)
    for name in (folder.RESULT, f".{folder.RESULT}"):
        (place / name).symlink_to(victim)
    as_user(owner, lambda: folder.write_result(place, {"status": "pass"}))
    assert victim.read_text() == "mine"
    assert folder.result(place) == {"status": "pass"}


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_what_is_in_the_way_is_reported(owner: Account, way: str) -> None:
    base = Path(owner.home) / folder.BASE
    base.write_text("") if way == "file" else os.mkfifo(base)
    with pytest.raises(Failed, match="in the way: it is not a directory"):
        make(owner)


def test_a_full_home_is_reported_and_nothing_is_left(owner: Account) -> None:
    fill = Path(owner.home) / "fill"
    with pytest.raises(OSError, match="No space left"):
        fill.write_bytes(bytes(2 << 20))
    with pytest.raises(Failed, match="No space left on device") as caught:
        make(owner)
    assert "Free space" in caught.value.hint
    base = Path(owner.home) / folder.BASE
    assert not base.exists() or not list(base.iterdir())


def test_of_an_output_without_end_the_beginning_and_the_end_are_read(
    owner: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "HEAD", 10)
    monkeypatch.setattr(folder, "TAIL", 20)
    place = make(owner)
    out = place / "mpi-7.out"
    out.write_text("0123456789" + "x" * 1000 + "and the end is here.")
    os.chown(out, owner.uid, owner.gid)
    said = as_user(owner, lambda: folder.output(place, out.name).decode())
    assert said == b"0123456789\n[gpucluster: 1000 bytes are left out]\nand the end is here."
    assert as_user(owner, lambda: folder.output(place, "none").decode()) == b""


def test_an_output_that_is_a_pipe_is_not_waited_for_and_one_of_root_is_not_read(owner: Account) -> None:
    place = make(owner)
    os.mkfifo(place / "pipe")
    os.chown(place / "pipe", owner.uid, owner.gid)
    with pytest.raises(Failed, match="not a regular file"):
        as_user(owner, lambda: folder.output(place, "pipe"))
    secret = place.parents[2] / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    (place / "link").symlink_to(secret)
    with pytest.raises(Failed, match="Permission denied"):
        as_user(owner, lambda: folder.output(place, "link"))


@pytest.mark.parametrize("text", ["", "no json", "[1]", "{" * 10_000, '"x"', "\udcff"])
def test_a_record_that_the_user_has_damaged_is_none(owner: Account, text: str) -> None:
    place = make(owner)
    (place / folder.RECORD).write_bytes(text.encode(errors="surrogateescape"))
    os.chown(place / folder.RECORD, owner.uid, owner.gid)
    assert json.loads(as_user(owner, lambda: json.dumps(folder.record(place)))) == {}


@pytest.mark.parametrize(
    "given",
    [
        None, {}, [], {"../x": {"text": ""}}, {"a/b": {"text": ""}}, {".x": {"text": ""}}, {"x\n": {"text": ""}},
        {"": {"text": ""}}, {"x": "text"}, {"x": {"text": 1}}, {folder.RECORD: {"text": ""}},
        {folder.RESULT: {"text": ""}}, {str(n): {"text": ""} for n in range(101)}, {"x": {"text": "a" * (17 << 20)}},
    ],
)  # fmt: skip
def test_files_that_lead_elsewhere_or_are_too_much_are_refused(given: Any) -> None:
    with pytest.raises(Refused):
        folder.checked_files(given)


def test_names_that_are_no_template_and_users_who_are_none_are_refused() -> None:
    for name in ("../x", "", None, "a'b", 'a"b', "A", "x" * 60):
        with pytest.raises(Refused):
            folder.checked_template(name)
    for user in ("root", "no such", "o'brien", None, 7, "x\0y"):
        with pytest.raises(Refused):
            account(user)
