"""The backup program: how a file is checked, and what is left when a restore fails half way."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import accounting, archive, directory, entries, jobs, user_program
from gpucluster.controller.backup import restore as restoring
from gpucluster.controller.backup import site as sites
from gpucluster.controller.users import lock
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.state import DirectoryState, DirectoryUser
from gpucluster.node_agent import errors, programs
from tests.controller.users.harness import CONFIG, SUFFIX

LDIF = f"""\
dn: {SUFFIX}
objectClass: dcObject
dc: demo

dn: ou=people,{SUFFIX}
ou: people

dn: uid=alice,ou=people,{SUFFIX}
uid: alice
description: of {SUFFIX}
creatorsName: cn=manager,{SUFFIX}

dn: cn=people,ou=groups,{SUFFIX}
cn: people

dn: cn=bob,ou=people,ou=retired,{SUFFIX}
cn: bob

dn: ou=hosts,{SUFFIX}
ou: hosts

dn: cn=compute-1,ou=hosts,{SUFFIX}
userPassword:: c2VjcmV0
"""


HERE = Config.parse(CONFIG)
ALICE = DirectoryUser("alice", 10001, 9999, "Alice", "/mnt/home/alice", "/bin/bash")


def site(place: Any, books: Any) -> sites.Site:
    """What is backed up, with doubles in place of the databases."""
    return sites.Site("demo", place, books)


def manifest(**more: Any) -> dict[str, Any]:
    counts = {"people": 1, "groups": 1, "accounting_jobs": None}
    found = {"version": 1, "cluster": "demo", "suffix": SUFFIX, "slurm_cluster": None, "time": "2026", "counts": counts}
    return {**found, "sha256": {"directory.ldif": hashlib.sha256(LDIF.encode()).hexdigest()}, **more}


def packed(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(content), kind
            member.linkname = "/etc/shadow"
            made.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def whole(**more: Any) -> io.BytesIO:
    return packed(("manifest.json", json.dumps(manifest(**more)).encode()), ("directory.ldif", LDIF.encode()))


def test_a_good_backup_is_unpacked(tmp_path: Path) -> None:
    assert archive.read_backup(tmp_path, whole()) == manifest()
    assert (tmp_path / "directory.ldif").read_text() == LDIF


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (lambda: io.BytesIO(b""), "not a backup"),
        (lambda: io.BytesIO(b"not compressed"), "not a backup"),
        (lambda: io.BytesIO(whole().getvalue()[:200]), "not a backup|damaged"),
        (lambda: packed(("directory.ldif", LDIF.encode())), "not a backup"),
        (lambda: packed(("manifest.json", b"{}")), "not a backup"),
        (lambda: packed(("manifest.json", b" " * (1 << 17))), "not a backup"),
        (lambda: packed(("../manifest.json", b"{}")), "does not belong"),
        (lambda: packed(("/etc/passwd", b"root::0:0:::")), "does not belong"),
        (lambda: packed(("manifest.json", b""), kind=tarfile.SYMTYPE), "does not belong"),
        (lambda: packed(("manifest.json", b"{}"), ("manifest.json", b"{}")), "not a backup"),
        (lambda: packed(*[("manifest.json", json.dumps(manifest()).encode())] * 2), "does not belong"),
        (lambda: packed(("manifest.json", json.dumps(manifest()).encode())), "damaged: the checksum of directory.ldif"),
        (lambda: whole(sha256={"directory.ldif": "0" * 64}), "damaged: the checksum of directory.ldif"),
        (lambda: whole(sha256={}), "'directory.ldif' does not belong"),
        (lambda: whole(version=2), "version 2"),
        (lambda: whole(counts={"people": 1}), "not complete"),
        (lambda: whole(suffix="dc=x\nmoduleload y"), "not complete"),
        (lambda: whole(slurm_cluster="x`; DROP DATABASE mysql; --"), "not complete"),
    ],
)
def test_what_is_not_a_whole_backup_is_refused(stream: Callable[[], io.BytesIO], says: str, tmp_path: Path) -> None:
    with pytest.raises(errors.Refused, match=says):
        archive.read_backup(tmp_path, stream())
    assert {file.name for file in tmp_path.iterdir()} <= {"manifest.json", "directory.ldif"}
    assert not any(file.is_symlink() for file in tmp_path.iterdir())


def test_users_and_groups_are_counted_and_those_who_left_are_not(tmp_path: Path) -> None:
    (tmp_path / "x.ldif").write_text(LDIF)
    assert entries.count_entries(tmp_path / "x.ldif", SUFFIX) == {"people": 1, "groups": 1}


@pytest.mark.parametrize("suffix", [SUFFIX, "dc=other,dc=local"])
def test_entries_come_under_the_cluster_s_own_suffix_without_those_of_hosts(suffix: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(LDIF.replace(SUFFIX, suffix).replace("dc: demo", f"dc: {suffix[3:].split(',')[0]}"))
    entries.adopt(source, target, suffix, HERE, entries.IdMemory())
    text = target.read_text()
    assert "sssd" not in text
    assert "compute-1" not in text
    assert f"dn: ou=hosts,{SUFFIX}\n" in text
    assert f"dn: {SUFFIX}\nobjectClass: dcObject\ndc: demo\n" in text
    assert f"dn: uid=alice,ou=people,{SUFFIX}\n" in text
    assert f"creatorsName: cn=manager,{SUFFIX}\n" in text
    # What users wrote is theirs.
    assert f"description: of {suffix}\n" in text


def written(state: dict[str, Any], suffix: str = SUFFIX) -> str:
    """A directory as slapcat writes it.

    Args:
        state: people, groups (name -> number), disabled, retired_people, retired_groups, next_uid, next_gid.
    """
    ldif = [f"dn: {suffix}\ndc: x"]
    for kind, key in (("people", "uid"), ("groups", "gid")):
        ldif.append(f"dn: cn=next-{key},{suffix}\ncn: next-{key}\ndescription: {state[f'next_{key}']}")
        for name, number in state.get(f"retired_{kind}", {}).items():
            ldif.append(f"dn: cn={name},ou={kind},ou=retired,{suffix}\ncn: {name}\nserialNumber: {number}")
    for name, uid in state.get("people", {}).items():
        ended = "\nshadowExpire: 1" if name in state.get("disabled", ()) else ""
        ldif.append(f"dn: uid={name},ou=people,{suffix}\nuid: {name}\nuidNumber: {uid}\ngidNumber: 9999{ended}")
    for name, gid in state.get("groups", {}).items():
        ldif.append(f"dn: cn={name},ou=groups,{suffix}\ncn: {name}\ngidNumber: {gid}")
    return "\n\n".join(ldif) + "\n\n"


def restored(now: dict[str, Any], then: dict[str, Any], tmp_path: Path) -> tuple[Any, Any]:
    """What the directory is after a restore, and what was carried over."""
    other = "dc=other,dc=local"
    files = [tmp_path / name for name in ("now", "then", "target")]
    files[0].write_text(written(now))
    files[1].write_text(written(then, other))
    states = (entries.read_state(files[0], HERE, SUFFIX), entries.read_state(files[1], HERE, other))
    memory = entries.remember(HERE, *states)
    entries.adopt(files[1], files[2], other, HERE, memory)
    return entries.read_state(files[2], HERE, SUFFIX), memory


def test_no_number_is_given_twice_over_a_restore(tmp_path: Path) -> None:
    now = {
        "people": {"alice": 10001, "eve": 10005}, "groups": {"people": 9999, "later": 10004},
        "retired_people": {"bob": 10002, "finn": 10006}, "retired_groups": {"old": 10003},
        "next_uid": 10007, "next_gid": 10005,
    }  # fmt: skip
    then = {
        "people": {"alice": 10001, "bob": 10002}, "groups": {"people": 9999}, "retired_people": {"ann": 10000},
        "next_uid": 10003, "next_gid": 10009,
    }  # fmt: skip
    after, _memory = restored(now, then, tmp_path)
    assert (after.next_uid, after.next_gid) == (10007, 10009)
    assert {name: one.uid for name, one in after.users.items()} == then["people"]
    # Bob is back, and so not among those who left.
    assert after.retired_users == {"ann": 10000, "eve": 10005, "finn": 10006}
    assert after.retired_groups == {"later": 10004, "old": 10003}


def test_a_number_that_the_backup_gives_to_a_user_stays_theirs(tmp_path: Path) -> None:
    now = {"people": {"eve": 10001}, "retired_people": {"ann": 10002}, "next_uid": 10003, "next_gid": 1}
    then = {"people": {"alice": 10001}, "retired_people": {"bob": 10002}, "next_uid": 10003, "next_gid": 1}
    after, _memory = restored(now, then, tmp_path)
    assert after.retired_users == {"bob": 10002}
    assert set(after.users) == {"alice"}


def test_who_can_log_in_again_is_named_and_who_can_t_any_more(tmp_path: Path) -> None:
    now = {
        "people": {"alice": 1, "carl": 3, "dan": 4, "eve": 5}, "disabled": ("carl", "dan"),
        "retired_people": {"bob": 2},
        "next_uid": 9, "next_gid": 9,
    }  # fmt: skip
    then = {
        "people": {"alice": 1, "bob": 2, "carl": 3, "dan": 4, "new": 7}, "disabled": ("dan", "alice"),
        "next_uid": 9, "next_gid": 9,
    }  # fmt: skip
    _after, memory = restored(now, then, tmp_path)
    assert memory.returned == ("bob", "carl")
    assert memory.dropped == ("eve",)


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


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A directory whose old, new and present database can be told apart."""
    found = directory.Directory(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody")
    for path, content in ((found.data, "old"), (found.fresh, "new")):
        path.mkdir()
        (path / "data.mdb").write_text(content)
    return found


def content(place: Any) -> str:
    return str((place.data / "data.mdb").read_text())


def test_the_new_database_takes_the_place_of_the_old(place: Any) -> None:
    place.exchange()
    assert (content(place), (place.aside / "data.mdb").read_text()) == ("new", "old")
    assert not place.recover()
    assert content(place) == "new"


@pytest.mark.parametrize("made_again", [True, False])
def test_a_kill_between_two_names_is_healed(place: Any, made_again: bool) -> None:
    place.data.rename(place.aside)
    if made_again:  # by the role, empty
        place.data.mkdir()
    assert place.recover()
    assert content(place) == "old"
    assert not place.recover()


def test_an_empty_directory_of_a_new_controller_is_left_alone(tmp_path: Path) -> None:
    assert not directory.Directory(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody").recover()


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
        patch.setattr(restoring, "active", lambda _unit: True)
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


def new(place: Any) -> dict[str, Any]:
    place.fresh.mkdir(exist_ok=True)
    (place.fresh / "data.mdb").write_text("new")
    return {"people": 1, "groups": 1, "accounting_jobs": 3}


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


class Shell(accounting.AccountingDatabase):
    """An accounting whose MariaDB answers from a table."""

    def ask(self, statement: str) -> list[str]:
        return ANSWERS[next(words for words in ANSWERS if words in statement)]


ANSWERS: dict[str, list[str]] = {}


@pytest.mark.parametrize(
    ("tables", "others", "strange"),
    [
        (["acct_table", "demo-1_job_table"], [], ""),
        (["acct_table", "x` TO `y`.`z`; DROP DATABASE mysql; -- "], [], "x` TO"),
        (["a\\nb"], [], "a"),
        ([""], [], "''"),
        (["acct_table", "user_table"], ["user_table"], "user_table"),
    ],
)
def test_a_database_that_is_not_slurm_s_is_refused(
    tables: list[str], others: list[str], strange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "BASE TABLE", others)
    monkeypatch.setitem(ANSWERS, "table_name", tables)
    books = Shell(tmp_path / "slurmdbd.conf", tmp_path, "demo", "mariadb", "mariadb", "mariadb-dump")
    with contextlib.ExitStack() as stack:
        if strange:
            stack.enter_context(pytest.raises(errors.Refused, match=strange))
        books._check("books_restore")
    if not others:
        with contextlib.ExitStack() as stack:
            if strange:
                stack.enter_context(pytest.raises(errors.Refused))
            books.tables("books")


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


def test_names_of_databases_are_read_from_slurmdbd_s_own_settings(tmp_path: Path) -> None:
    (tmp_path / "slurmdbd.conf").write_text("StorageLoc=slurm_acct_db\nStorageUser = slurm\n")
    books = accounting.AccountingDatabase(
        tmp_path / "slurmdbd.conf", tmp_path, "demo", "mariadb", "mariadb", "mariadb-dump"
    )
    assert (books.database, books.setting("storageuser")) == ("slurm_acct_db", "slurm")
    with pytest.raises(errors.Failed, match="has no value for SlurmUser"):
        books.setting("SlurmUser")
