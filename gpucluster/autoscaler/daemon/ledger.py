"""The ledger: the memory and the history of the autoscaler, in one SQLite file that survives a kill at any point.

The daemon owns it under a lock of the kernel (flock) that ends with its process. Commands read it, and write one thing:
whether the autoscaler is paused. Changes are written in one transaction that is on the disk when `commit` returns (WAL,
synchronous=FULL), so that a launch is never sent before it is written. If that fails, `commit` raises.

The memory is stored as rows of (field, key, JSON), one field for each of `types.Memory`. A new field there needs a
default and no change here. A file that can't be read is renamed with its time, and a new one is created with a new id:
instances that were launched before are found again by their tags.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.decide.types import (
    Action,
    Annotate,
    Delay,
    DrainNodes,
    Hold,
    Join,
    Launch,
    MarkDown,
    Memory,
    NodeClaim,
    PowerDown,
    SaveConsole,
    ScalingPlan,
    Terminate,
)
from gpucluster.autoscaler.decide.words import VERBS
from gpucluster.errors import LockedError, ToolError

FILE = "ledger.sqlite"
LOCK = "lock"
VERSION = 1
# How many events are kept, of all subjects together; and how many notes one pass may add.
EVENTS_KEPT = 100_000
_NOTES_AT_ONCE = 1000
_BUSY = 5.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS memory (field TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (field, key))"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, at REAL, subject TEXT, what TEXT, why TEXT)",
    "CREATE INDEX IF NOT EXISTS events_of ON events (subject, number)",
)
_HINT = "Check the disk (df) and the owner of the directory; nothing is launched until it can be written"
_VERBS = {**VERBS, Join: "configure"}

log = DaemonLog("ledger")


class LedgerError(ToolError):
    """The ledger can't be read or written."""


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """Something that was decided, done or observed.

    Args:
        at: seconds of the epoch. `subject`: a node, job, gang, pool or instance, or "autoscaler".
    """

    at: float
    subject: str
    what: str
    why: str = ""


class _Broken(Exception):
    """The file exists and is not a ledger."""


class Ledger:
    """The ledger of one cluster.

    Args:
        directory: where the file is; the daemon creates it if it is missing.
        exclusive: for the daemon, which alone may create a ledger. Commands read and pause: exclusive=False.

    Raises:
        LockedError: another daemon has it open.
        LedgerError: it can't be opened; for a command, also where there is none.
    """

    def __init__(self, directory: Path, *, exclusive: bool = True) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._exclusive = exclusive
        self._lock = self._take_lock() if exclusive else -1
        self._database: sqlite3.Connection | None = None
        self._inode = 0
        self._memory: Memory | None = None
        self._in_file: Memory | None = None
        self._notes: dict[str, str] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and release the lock."""
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- memory -----

    def load(self) -> Memory:
        """The memory. Pauses and their end, which operators write, are read again each time.

        Raises:
            LedgerError: it can't be read.
        """
        with self._errors("read"):
            self._reopen_if_lost()
            if self._memory is None or not self._exclusive:
                self._memory = self._in_file = self._read()
            else:
                changes = self._pauses_of_operators()
                self._memory = replace(self._memory, **changes)
                self._in_file = self._in_file and replace(self._in_file, **changes)
            return self._memory

    def commit(self, memory: Memory, decided: ScalingPlan | None = None, now: float | None = None) -> None:
        """Write what differs from the file, and what is about to be done; all of it or nothing.

        Args:
            decided: its actions and notes become events. `now`: their time.

        Raises:
            LedgerError: it is not written, and nothing may be launched.
        """
        at = time.time() if now is None else now
        before = self._in_file
        written, gone = _difference(before, memory)
        notes = self._new_notes(decided)
        events = [
            *_changes(before.claims if before else {}, memory.claims, at),
            *(event for action in (decided.actions if decided else ()) for event in _events(action, at)),
            *(LedgerEvent(at, subject, "note", text) for subject, text in notes.items()),
        ]
        if written or gone or events:
            with self._errors("written"), self._transaction() as database:
                if before is None:
                    database.execute("DELETE FROM memory")
                database.executemany("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", written)
                database.executemany("DELETE FROM memory WHERE field = ? AND key = ?", gone)
                _insert(database, events)
        self._memory = self._in_file = memory
        if decided is not None:
            noted = {note.subject for note in decided.notes}
            self._notes = {subject: text for subject, text in self._notes.items() if subject in noted} | notes

    # --- events -----

    def audit(self, events: Iterable[LedgerEvent]) -> None:
        """Write events that no plan has.

        Raises:
            LedgerError: it is not written.
        """
        with self._errors("written"), self._transaction() as database:
            _insert(database, list(events))

    def history(self, subject: str, most: int = 100) -> tuple[LedgerEvent, ...]:
        """The latest events of a subject, oldest first.

        Raises:
            LedgerError: it can't be read.
        """
        with self._errors("read"):
            rows = self._connected().execute(
                "SELECT at, subject, what, why FROM events WHERE subject = ? ORDER BY number DESC LIMIT ?",
                (subject, most),
            )
            return tuple(LedgerEvent(*row) for row in reversed(rows.fetchall()))

    # --- pause -----

    def pause(self, reason: str, now: float | None = None) -> None:
        """Pause the autoscaler; with an empty reason, let it continue, and end cool-downs. The daemon reads this in its
        next pass.

        Raises:
            LedgerError: it is not written.
        """
        at = time.time() if now is None else now
        with self._errors("written"), self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO memory VALUES ('paused', '', ?)", (json.dumps(reason),))
            if not reason:
                database.execute("INSERT OR REPLACE INTO memory VALUES ('resumed_at', '', ?)", (json.dumps(at),))
            _insert(database, [LedgerEvent(at, "autoscaler", "pause" if reason else "resume", reason)])

    # --- the file -----

    def _take_lock(self) -> int:
        path = self._directory / LOCK
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"can't open the lock: {error.strerror}", where=str(path), hint=_HINT) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            who = f"another autoscaler (pid {holder})" if holder.isdigit() else "another autoscaler"
            raise LockedError(
                f"the ledger is held by {who}",
                where=str(path),
                hint="One daemon is enough: systemctl status gpucluster-autoscaler",
            ) from None
        with suppress(OSError):  # only for the message above; a full disk is noticed where it matters
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def _open(self) -> None:
        with self._errors("opened"):
            try:
                self._connect()
            except _Broken as broken:
                self._disconnect()
                if not self._exclusive:
                    raise LedgerError(f"the ledger can't be read: {broken}", where=str(self._path)) from broken
                self._set_aside(str(broken))
                self._connect()

    def _connect(self) -> None:
        """Open the file, for the daemon create it if it is missing, and check that all of it can be read."""
        try:
            if self._exclusive:
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            database = sqlite3.connect(uri, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            self._database = database
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0 and self._exclusive:
                self._begin()
            elif version != VERSION:
                raise _Broken(f"it is of version {version}, not {VERSION}")
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _Broken(str(verdict).splitlines()[0])
            self._inode = self._path.stat().st_ino
            self._read()
        except (sqlite3.OperationalError, OSError):
            raise
        except (sqlite3.DatabaseError, ValueError) as error:
            raise _Broken(str(error)) from error

    def _begin(self) -> None:
        with self._transaction() as database:
            for statement in _TABLES:
                database.execute(statement)
            database.execute("INSERT OR REPLACE INTO memory VALUES ('id', '', ?)", (json.dumps(secrets.token_hex(8)),))
            database.execute(f"PRAGMA user_version={VERSION}")
        log.info("a new ledger was created", file=str(self._path))

    def _reopen_if_lost(self) -> None:
        """If the file was removed or is broken, the next commit writes everything that is known into a new one."""
        try:
            lost = self._database is None or self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            lost = True
        if lost and self._exclusive:
            log.error("the ledger is lost and is written again", file=str(self._path))
            self._disconnect()
            self._open()
            self._in_file = None

    def _set_aside(self, why: str) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = self._path.with_name(f"{FILE}.broken-{stamp}-{secrets.token_hex(2)}")
        for ending in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{ending}", f"{aside}{ending}")
        log.error(f"the ledger can't be read and was set aside: {why[:200]}", file=str(aside))

    def _disconnect(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            raise LedgerError("the ledger is not open", where=str(self._path), hint=_HINT)
        return self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._connected()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            # After a full disk SQLite may have rolled back itself.
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self, participle: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            raise LedgerError(
                f"the ledger can't be {participle}: {error}", where=str(self._path), hint=_HINT
            ) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            self._disconnect()  # the next pass opens it again, and sets it aside
            raise LedgerError(f"the ledger is broken: {error}", where=str(self._path), hint=_HINT) from error

    # --- rows -----

    def _read(self) -> Memory:
        hints = _fields()
        fields: dict[str, Any] = {name: {} for name in _mappings()}
        for name, key, text in self._connected().execute("SELECT field, key, value FROM memory"):
            if name in _mappings():
                fields[name][key] = _decode(_mappings()[name], json.loads(text))
            elif name in hints:
                fields[name] = _decode(hints[name], json.loads(text))
        if not fields.get("id"):
            raise ValueError("it has no id")
        return Memory(**fields)

    def _pauses_of_operators(self) -> dict[str, Any]:
        rows = self._connected().execute("SELECT field, value FROM memory WHERE field IN ('paused', 'resumed_at')")
        return {"paused": "", "resumed_at": 0.0, **{field: json.loads(value) for field, value in rows}}

    def _new_notes(self, decided: ScalingPlan | None) -> dict[str, str]:
        """Notes that differ from those of the last pass: a note is written once, not in every pass."""
        new: dict[str, str] = {}
        for note in decided.notes if decided else ():
            if len(new) < _NOTES_AT_ONCE and self._notes.get(note.subject) != note.text:
                new[note.subject] = note.text
        return new


def _insert(database: sqlite3.Connection, events: list[LedgerEvent]) -> None:
    if events:
        rows = [(event.at, event.subject, event.what, event.why) for event in events]
        database.executemany("INSERT INTO events (at, subject, what, why) VALUES (?, ?, ?, ?)", rows)
        database.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (EVENTS_KEPT,))


def _events(action: Action, at: float) -> Iterator[LedgerEvent]:
    """One event for each subject of an action."""
    subjects: tuple[str, ...]
    match action:
        case PowerDown() | MarkDown() | DrainNodes():
            subjects = action.nodes
        case Delay() | Hold() | Annotate():
            subjects = (action.job,)
        case Launch():
            subjects = (action.node,)
        case Terminate() | Join() | SaveConsole():
            subjects = (action.node, action.instance_id)
    for subject in subjects:
        yield LedgerEvent(at, subject, _VERBS[type(action)], action.why)


def _changes(before: Mapping[str, NodeClaim], after: Mapping[str, NodeClaim], at: float) -> Iterator[LedgerEvent]:
    """Events for claims that changed."""
    for name, claim in after.items():
        old = before.get(name)
        if old is claim or (
            old and (old.state, old.generation, old.fault) == (claim.state, claim.generation, claim.fault)
        ):
            continue
        details = (f"{claim.fault}: {claim.message}" if claim.fault else "", claim.instance_id, claim.request_id)
        yield LedgerEvent(at, name, f"{claim.state}, generation {claim.generation}", "; ".join(filter(None, details)))
    for name in before.keys() - after.keys():
        yield LedgerEvent(at, name, "forgotten")


def _difference(before: Memory | None, after: Memory) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """The rows to write, and the rows to remove."""
    written: list[tuple[str, str, str]] = []
    gone: list[tuple[str, str]] = []
    for name in _fields():
        new = getattr(after, name)
        old = getattr(before, name) if before is not None else None
        if name not in _mappings():
            if before is None or old != new:
                written.append((name, "", _encode(new)))
            continue
        known = old or {}
        for key, value in new.items():
            stored = known.get(key)
            if stored is not value and (stored != value or key not in known):
                written.append((name, key, _encode(value)))
        gone += [(name, key) for key in known if key not in new]
    return written, gone


@cache
def _fields() -> dict[str, Any]:
    """The types of the fields of Memory."""
    return _hints(Memory)


@cache
def _mappings() -> dict[str, Any]:
    """The fields that are stored as one row for each key, with the type of a value."""
    return {name: get_args(hint)[1] for name, hint in _fields().items() if get_origin(hint) is Mapping}


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def _encode(value: Any) -> str:
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A value for JSON. None is an empty string there; no optional field has empty strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in _hints(type(value))}
    return [_plain(part) for part in value] if isinstance(value, tuple) else "" if value is None else value


def _decode(hint: Any, raw: Any) -> Any:
    """A value of the type that the field has.

    Raises:
        ValueError: it has another type.
    """
    if get_origin(hint) is UnionType:
        return None if raw == "" else _decode(next(kind for kind in get_args(hint) if kind is not type(None)), raw)
    if get_origin(hint) is tuple and isinstance(raw, list):
        return tuple(_decode(get_args(hint)[0], part) for part in raw)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(raw, dict):
        try:
            return hint(**{name: _decode(kind, raw[name]) for name, kind in _hints(hint).items() if name in raw})
        except TypeError as error:
            raise ValueError(str(error)) from error
    if isinstance(hint, type) and issubclass(hint, StrEnum) and isinstance(raw, str):
        return hint(raw)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(hint, type) and type(raw) is hint:
        return raw
    raise ValueError(f"{raw!r} is not {hint}"[:200])
