"""What a restore replaces, and what is left of one that fails or is killed half way."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import archive, directory, entries, jobs, user_program
from gpucluster.controller.backup import restore as restoring
from gpucluster.controller.backup import site as sites
from gpucluster.controller.users import lock
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.state import DirectoryState, DirectoryUser
from gpucluster.node_agent import errors, programs
from tests.controller.backup.contents import HERE, LDIF, content, manifest, new
from tests.controller.users.harness import SUFFIX

ALICE = DirectoryUser("alice", 10001, 9999, "Alice", "/mnt/home/alice", "/bin/bash")


def site(place: Any, books: Any) -> sites.Site:
    """What is backed up, with doubles in place of the databases."""
    return sites.Site("demo", place, books)


def test_a_backup_whose_directory_is_none_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text(f"dn: uid=x,ou=people,{SUFFIX}\nuid: x\nuidNumber: many\n")
    with pytest.raises(errors.Refused, match="can't be read"):
        restoring.memory_of(HERE, bad, bad, SUFFIX)
    # Of a present one that is damaged, nothing can be carried over: all the more it must be replaced.
    good = tmp_path / "good"
    good.write_text(LDIF.replace("uid: alice\n", "uid: alice\nuidNumber: 1\ngidNumber: 1\n"))
    assert restoring.memory_of(HERE, bad, good, SUFFIX) == entries.IdMemory()
    assert restoring.memory_of(HERE, tmp_path / "missing", good, SUFFIX) == entries.IdMemory()


class Books:
    """An accounting whose database is a word."""

    def __init__(self) -> None:
        self.unit = "mariadb"
        self.database, self.cluster = "books", "demo"
        self.present, self.before, self.fresh = "old", "", "new"

    def build(self, _sql: Path) -> None: ...
    def discard(self) -> None: ...

    def pending(self) -> bool:
        return bool(self.fresh) and not self.before

    def exchange(self) -> None:
        self.before, self.present, self.fresh = self.present, self.fresh, ""

    def put_back(self) -> None:
        if self.before:
            self.present, self.before, self.fresh = self.before, "", self.present


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


class Restore:
    """A restore whose daemons are told nothing, and of which one step goes wrong.

    Args:
        broken: the step that fails the first time it is made.
        error: as what.
    """

    def __init__(self, place: Any, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
        self.books, self.steps, self.place = Books(), list[str](), place
        self.broken, self.again = "", False
        self.error: BaseException = Exception()
        self.held: list[str] = []
        self.site = site(place, self.books)
        (tmp_path / "kept").mkdir()
        patch.setattr(sites, "KEPT", tmp_path / "kept")
        patch.setattr(Config, "load", lambda: HERE)
        patch.setattr(lock, "held", self.lock)
        patch.setattr(restoring, "is_active", lambda _unit: True)
        patch.setattr(restoring, "unit", lambda *_words: None)
        patch.setattr(restoring, "read_backup", lambda *_: manifest())
        patch.setattr(restoring, "check_fit", lambda *_, **__: None)
        patch.setattr(restoring, "save_present", lambda *_: Path("/kept/before.tar.gz"))
        patch.setattr(restoring, "memory_of", lambda *_: entries.IdMemory(returned=("bob",), dropped=("eve",)))
        patch.setattr(restoring, "adopt", lambda *_: None)
        patch.setattr(restoring, "read_state", lambda *_: DirectoryState(users={"alice": ALICE}))
        patch.setattr(restoring, "build", lambda *_: new(place))
        patch.setattr(jobs, "last_id_to_continue_after", lambda *_, **__: 7)
        patch.setattr(jobs, "end_lost", lambda *_: (2, ["jobs: they stay"]))
        patch.setattr(user_program, "complete", self.complete)
        patch.setattr(restoring, "stop", self.step("stop", lambda *_: None))
        patch.setattr(restoring, "start", self.step("start", lambda *_: []))
        patch.setattr(
            restoring, "check_served", self.step("check_served", lambda *_, **__: {"people": 1, "accounting_jobs": 3})
        )
        patch.setattr(place.__class__, "exchange", self.step("directory", place.__class__.exchange))
        patch.setattr(self.books, "exchange", self.step("accounting", self.books.exchange))
        patch.setattr(self.books, "put_back", self.step("accounting back", self.books.put_back))
        patch.setattr(place.__class__, "put_back", self.step("directory back", place.__class__.put_back))

    def step(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.steps.append(name)
            if name == self.broken and (self.again or self.steps.count(name) == 1):
                raise self.error
            return work(*arguments, **more)

        return call

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        self.held.append("taken")
        yield
        self.held.append("given back")

    def complete(self, names: list[str]) -> list[str]:
        self.held.append(f"completed {','.join(names)}")
        return ["alice: her home is not hers"]

    def run(self) -> Any:
        return restoring.restore(self.site, io.BytesIO(), force=False)

    @property
    def present(self) -> tuple[str, str]:
        return content(self.place), self.books.present


@pytest.fixture
def restore(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restore:
    return Restore(place, tmp_path, monkeypatch)


def test_a_restore_replaces_both_and_tells_what_follows(restore: Restore) -> None:
    assert restore.run() == {
        "people": 1, "accounting_jobs": 3, "ended_jobs": 2, "kubernetes_objects": None,
        "kept_aside": "/kept/before.tar.gz", "returned": ["bob"], "dropped": ["eve"],
        "unfinished": ["jobs: they stay", "alice: her home is not hers"],
    }  # fmt: skip
    assert restore.present == ("new", "new")
    assert not restore.place.aside.exists()
    # The program that completes the users takes the lock itself.
    assert restore.held == ["taken", "given back", "completed alice"]


@pytest.mark.parametrize("broken", ["stop", "directory", "accounting", "start", "check_served"])
def test_a_restore_that_fails_brings_back_what_was_there(broken: str, restore: Restore) -> None:
    # Only the first time: the way back must work.
    restore.broken, restore.error = broken, errors.Failed("it broke", "do this")
    with pytest.raises(errors.Failed, match=r"it broke; the previous content is in use again.*/kept/before") as error:
        restore.run()
    assert error.value.hint == "do this"
    assert restore.present == ("old", "old")
    assert restore.steps[-1] == "start"


def test_a_way_back_that_fails_names_what_is_kept(restore: Restore) -> None:
    restore.broken, restore.error, restore.again = "start", errors.Failed("slapd does not start"), True
    with pytest.raises(errors.Failed, match=r"could not be put back: slapd.* It is saved in /kept/before") as error:
        restore.run()
    assert "restore that file" in error.value.hint


def test_a_signal_does_not_end_the_way_back(restore: Restore) -> None:
    """Who asked for the end of a restore and asks again, gets everything as it was."""
    restore.broken, restore.error = "check_served", KeyboardInterrupt()
    ways_back = []

    def disturbed() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        ways_back.append(1)
        Books.put_back(restore.books)

    restore.books.put_back = disturbed  # type: ignore[method-assign]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(errors.Failed, match="KeyboardInterrupt; the previous content is in use again"):
            restore.run()
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ways_back == [1]
    assert restore.present == ("old", "old")


@pytest.mark.parametrize(
    ("killed", "left"),
    [
        ("directory", ("old", "old")),
        ("accounting", ("old", "old")),
        ("start", ("new", "new")),
        ("check_served", ("new", "new")),
        # On the way back of a restore that failed.
        ("accounting back", ("new", "new")),
        ("directory back", ("old", "old")),
    ],
)
def test_of_a_restore_that_is_killed_both_are_old_or_both_are_new(
    killed: str, left: tuple[str, str], restore: Restore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "back" in killed:
        monkeypatch.setattr(restoring, "check_served", lambda *_: 1 / 0)
    else:
        monkeypatch.setattr(restoring, "roll_back", roll_back)
    restore.broken, restore.error = killed, Killed()
    with pytest.raises(Killed):
        restore.run()
    restore.broken = ""
    # As slapd's unit does it, each time that it starts.
    for _ in range(2):
        restoring.recover(restore.site)
        assert restore.present == left


def roll_back(_site: Any, _kept: Path, error: BaseException) -> None:
    raise error


class Growing(Books):
    """An accounting in which jobs begin while it is written out."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def jobs(self, _database: str, _cluster: str) -> int:
        return self.numbers.pop(0)

    def dump(self, file: Path) -> None:
        file.write_text("sql")


class Loaded(directory.Directory):
    """A directory whose entries are always the same."""

    def dump(self, file: Path) -> None:
        file.write_text(LDIF)

    def build(self, _ldif: Path) -> None: ...


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    return Loaded(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody")


def test_a_backup_taken_while_jobs_begin_can_be_restored(loaded: Any, tmp_path: Path) -> None:
    # In the dump is what was there between the two: 8.
    found, out = site(loaded, Growing(7, 9)), io.BytesIO()
    for name in ("made", "read"):
        (tmp_path / name).mkdir()
    archive.write_backup(found, tmp_path / "made", out)
    out.seek(0)
    said = archive.read_backup(tmp_path / "read", out)
    assert said["counts"]["accounting_jobs"] == 7
    found = site(loaded, Growing(8))
    assert restoring.build(found, said, tmp_path / "read", tmp_path / "entries")["accounting_jobs"] == 8
    found = site(loaded, Growing(6))
    with pytest.raises(errors.Refused, match="not complete: its number of accounting_jobs"):
        restoring.build(found, said, tmp_path / "read", tmp_path / "entries")


def test_a_waiting_job_that_starts_does_not_end_a_restore(loaded: Any, tmp_path: Path) -> None:
    built = {"people": 1, "groups": 1, "accounting_jobs": 8}
    assert restoring.check_served(site(loaded, Growing(9)), tmp_path, manifest(), built)["people"] == 1
    with pytest.raises(errors.Failed, match="there are 7 accounting_jobs, not 8"):
        restoring.check_served(site(loaded, Growing(7)), tmp_path, manifest(), built)
    with pytest.raises(errors.Failed, match="there are 1 people, not 0"):
        restoring.check_served(site(loaded, Growing(8)), tmp_path, manifest(), {**built, "people": 0})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "kept"
    found.mkdir()
    for number in range(6):
        (found / f"before-2020010{number}T000000Z.tar.gz").write_text("old")
    (found / "work").mkdir()
    monkeypatch.setattr(restoring, "KEPT", found)
    return found


def test_what_was_there_is_kept_and_only_then_older_ones_go(loaded: Any, kept: Path) -> None:
    made = restoring.save_present(sites.Site("demo", loaded, None), kept / "work")
    with tarfile.open(made) as found:
        assert found.getnames() == ["manifest.json", "directory.ldif"]
    left = sorted(file.name for file in kept.glob("before-*"))
    assert (len(left), left[0], left[-1]) == (5, "before-20200102T000000Z.tar.gz", made.name)


def test_a_full_disk_takes_no_older_one_away(loaded: Any, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_site: Any, _work: Path, out: Any) -> None:
        out.write(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(restoring, "write_backup", full)
    with pytest.raises(OSError, match="No space"):
        restoring.save_present(sites.Site("demo", loaded, None), kept / "work")
    assert len(list(kept.glob("before-*"))) == 6


def test_of_a_directory_that_can_not_be_read_its_files_are_kept(place: Any, kept: Path) -> None:
    # There is no slapcat here, or no configuration.
    made = restoring.save_present(sites.Site("demo", place, None), kept / "work")
    assert (made / "directory" / "data.mdb").read_text() == "old"


def test_no_program_is_waited_for_without_an_end() -> None:
    with pytest.raises(errors.Failed, match=r"sleep 60 did not end within 0 s"):
        programs.run("sleep", "60", seconds=0.05)
    with pytest.raises(errors.Failed, match="sh: it broke"):
        programs.run("sh", "-c", "echo it broke >&2; exit 3")
    assert programs.run("cat", text="words") == "words"


@pytest.mark.parametrize(
    ("answer", "unfinished"),
    [
        ('{"result": {"users": [{"name": "a", "status": "unchanged"}], "changed": false}}', []),
        ('{"result": {"users": [{"name": "a", "status": "failed", "message": "no room"}]}}', ["a: no room"]),
        ('{"error": {"message": "homes are not mounted", "hint": ""}}', ["homes are not mounted"]),
        ("welcome", ["the directory's program gives no answer: status 0"]),
    ],
)
def test_what_can_not_be_completed_is_reported(
    answer: str, unfinished: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cluster"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/asked\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(user_program, "_PROGRAM", (str(program),))
    assert user_program.complete(["a"]) == unfinished
    asked = {"operation": "user.import", "arguments": {"users": [{"name": "a"}]}}
    assert json.loads((tmp_path / "asked").read_text()) == asked
