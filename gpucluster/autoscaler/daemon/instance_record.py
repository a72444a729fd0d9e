"""The record of elastic instances: when each was launched, and when it ended. Their cost is counted from it.

It is one SQLite file in the daemon's folder, and so on the controller's volume where it has one. It is apart from the
ledger, which is set aside when it can't be read, and is small: a row for each instance, for 400 days after its end,
200,000 at most (40 MB). No decision depends on it, but budgets are counted from it.

An instance counts from when the cloud accepted it until the first listing in which it is not live. If there was no
listing before that, because the daemon was down, `unsure` has the seconds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.decide.types import CloudInstance
from gpucluster.autoscaler.policy import PoolPolicy
from gpucluster.controller.accounts.usage import INSTANCES, KEPT_S

FILE = INSTANCES.name
MOST = 200_000
# Seconds between two notes that an instance was seen; without one for longer than twice that, its end is unsure.
_SEEN_EVERY = 300.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS instances (id TEXT PRIMARY KEY, name TEXT NOT NULL, pool TEXT NOT NULL,"
    " machine TEXT NOT NULL, began REAL NOT NULL, seen REAL NOT NULL, ended REAL, unsure REAL NOT NULL DEFAULT 0)"
)

_PRUNE = "DELETE FROM instances WHERE id IN (SELECT id FROM instances ORDER BY began DESC LIMIT -1 OFFSET ?)"


class InstanceRecord:
    """The record of one cluster. Every call raises sqlite3.Error or OSError when it can't be written."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._open: dict[str, float] | None = None  # those that have not ended: when they were last noted

    def observe(self, instances: Iterable[CloudInstance], pools: Mapping[str, PoolPolicy], now: float) -> None:
        """Record what a listing of the cloud shows. Where nothing has come or gone, nothing is written for minutes."""
        live = {one.id: one for one in instances if one.live}
        try:
            self._observe(live, pools, now)
        except sqlite3.OperationalError:
            self._open = None
            raise
        except sqlite3.DatabaseError:
            # The file is damaged. What is live is recorded again.
            with suppress(FileNotFoundError):
                self._file.rename(self._file.with_name(f"{FILE}.broken"))
            self._open = None
            self._observe(live, pools, now)

    def _observe(self, live: Mapping[str, CloudInstance], pools: Mapping[str, PoolPolicy], now: float) -> None:
        known = self._known()
        come = [one for one in live.values() if one.id not in known]
        gone = [name for name in known if name not in live]
        stale = [name for name, seen in known.items() if name in live and now - seen >= _SEEN_EVERY]
        if not (come or gone or stale):
            return
        with closing(self._connected()) as database, database:
            for one in come:
                _begin(database, one, pools, now)
            for name in gone:
                late = now - known[name]
                unsure = late if late > 2 * _SEEN_EVERY else 0.0
                database.execute("UPDATE instances SET ended = ?, unsure = ? WHERE id = ?", (now, unsure, name))
            database.executemany("UPDATE instances SET seen = ? WHERE id = ?", [(now, name) for name in stale])
            database.execute("DELETE FROM instances WHERE ended < ?", (now - KEPT_S,))
            database.execute(_PRUNE, (MOST,))
        self._open = {name: now if name in stale or name not in known else known[name] for name in live}

    def _known(self) -> dict[str, float]:
        if self._open is None or not self._file.exists():
            with closing(self._connected()) as database:
                self._open = dict(database.execute("SELECT id, seen FROM instances WHERE ended IS NULL"))
        return self._open

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, timeout=5.0)
        try:
            with database:
                database.execute(_TABLE)
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database


def _begin(database: sqlite3.Connection, one: CloudInstance, pools: Mapping[str, PoolPolicy], now: float) -> None:
    pool = pools.get(one.pool)
    machine: dict[str, Any] = dict(pool.machine) if pool else {}
    if pool:
        machine.setdefault("shape", pool.shape)
    row = (one.id, one.node, one.pool, json.dumps(machine, sort_keys=True), one.created_at or now, now)
    # One that a listing lacked for a moment goes on.
    database.execute(
        "INSERT INTO instances (id, name, pool, machine, began, seen) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET ended = NULL, unsure = 0, seen = excluded.seen",
        row,
    )
