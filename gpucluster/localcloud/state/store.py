"""The state of a local cloud in one SQLite file: resources, addresses, retry tokens and a few settings.

A resource has the JSON that the API shows (`body`) and what only the server needs (`hidden`). The server commits a row
before it makes the container or directory behind it, so a server that is killed at any line can continue its work.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_RETRY_TOKEN_LIFE = 24 * 3600.0  # seconds (docs: opc-retry-token)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS resource (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    gone_at REAL,
    body TEXT NOT NULL,
    hidden TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS resource_kind ON resource (kind, gone_at);
CREATE INDEX IF NOT EXISTS resource_instance ON resource (json_extract(body, '$.instanceId'))
    WHERE json_extract(body, '$.instanceId') IS NOT NULL;
CREATE INDEX IF NOT EXISTS resource_label ON resource (lower(json_extract(body, '$.hostnameLabel')))
    WHERE json_extract(body, '$.hostnameLabel') IS NOT NULL;
CREATE TABLE IF NOT EXISTS address (
    space TEXT NOT NULL, address TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (space, address)
);
CREATE TABLE IF NOT EXISTS retry (
    token TEXT PRIMARY KEY, operation TEXT NOT NULL, digest TEXT NOT NULL, resource TEXT NOT NULL,
    work_request TEXT NOT NULL, made_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS setting (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass
class Resource:
    """One row. `gone_at` (seconds since the epoch) is set when the resource is terminated or deleted."""

    id: str
    kind: str
    body: Json
    hidden: Json = field(default_factory=dict)
    seq: int = 0
    version: int = 1
    gone_at: float | None = None

    @property
    def state(self) -> str:
        """The lifecycle state (a LifecycleState); empty for kinds that have none."""
        return str(self.body.get("lifecycleState", ""))

    @property
    def etag(self) -> str:
        """Changes with every write."""
        return f"{self.seq:x}-{self.version:x}"


@dataclass(frozen=True)
class Retry:
    """What an earlier request with the same opc-retry-token created."""

    operation: str
    digest: str
    resource: str
    work_request: str


class ResourceStore:
    """One connection with one lock: the server is one process, and a statement takes microseconds."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA busy_timeout=5000")
        self._db.executescript(f"BEGIN;{_SCHEMA}COMMIT;")  # who reads the file meanwhile finds all tables, or none

    def close(self) -> None:
        """Close the file. SQLite merges the write-ahead log into it."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, one transaction at a time. May be nested: a failed inner transaction undoes only itself."""
        with self._lock:
            self._depth += 1
            mark = f"level{self._depth}"
            try:
                self._db.execute("BEGIN IMMEDIATE" if self._depth == 1 else f"SAVEPOINT {mark}")
                try:
                    yield
                except BaseException:
                    self._db.execute("ROLLBACK" if self._depth == 1 else f"ROLLBACK TO {mark}")
                    if self._depth > 1:
                        self._db.execute(f"RELEASE {mark}")
                    raise
                self._db.execute("COMMIT" if self._depth == 1 else f"RELEASE {mark}")
            finally:
                self._depth -= 1

    # resources

    def add(self, resource: Resource) -> Resource:
        """Insert a new resource."""
        with self._lock:
            cursor = self._db.execute(
                "INSERT INTO resource (id, kind, gone_at, body, hidden) VALUES (?, ?, ?, ?, ?)",
                (resource.id, resource.kind, resource.gone_at, _dump(resource.body), _dump(resource.hidden)),
            )
            resource.seq = int(cursor.lastrowid or 0)
        return resource

    def save(self, resource: Resource) -> Resource:
        """Write a changed resource back."""
        resource.version += 1
        with self._lock:
            self._db.execute(
                "UPDATE resource SET version = ?, gone_at = ?, body = ?, hidden = ? WHERE id = ?",
                (resource.version, resource.gone_at, _dump(resource.body), _dump(resource.hidden), resource.id),
            )
        return resource

    def get(self, kind: str, ocid: str) -> Resource | None:
        """The resource, also if it is gone."""
        rows = self._select("kind = ? AND id = ?", (kind, ocid))
        return rows[0] if rows else None

    def newest(
        self, kind: str, fields: Mapping[str, object], hidden: Mapping[str, object], *, before: int | None, limit: int
    ) -> list[Resource]:
        """Up to `limit` resources of a kind, also those that are gone, newest first, with `seq` below `before`.

        Args:
            fields: values that members of the body must have.
            hidden: values that members of `Resource.hidden` must have.
        """
        where, values = _where(kind, None, fields)
        where += "".join(f" AND json_extract(hidden, '$.{name}') = ?" for name in hidden)
        where += " AND seq < ?" if before is not None else ""
        bound = () if before is None else (before,)
        return self._select(where, (*values, *hidden.values(), *bound, limit), "DESC LIMIT ?")

    def find(self, kind: str, *, gone: bool | None = False, **fields: object) -> list[Resource]:
        """Resources of a kind in order of creation, where each named member of the body has that value.

        `gone`: False for those that exist, True for those that are gone, None for both.
        """
        return self._select(*_where(kind, gone, fields))

    def count(self, kind: str, fields: Mapping[str, object], *, gone: bool | None = False) -> int:
        """The number of resources that `find` would return."""
        where, values = _where(kind, gone, fields)
        with self._lock:
            row = self._db.execute(f"SELECT count(*) FROM resource WHERE {where}", values).fetchone()  # noqa: S608
        return int(row[0])

    def labelled(self, subnet: str, label: str) -> list[Resource]:
        """The VNICs of a subnet that have this host name; upper and lower case are equal."""
        # The plus signs stop SQLite from using its index on kinds, which is slower here.
        where = (
            "+kind = 'vnic' AND +gone_at IS NULL AND lower(json_extract(body, '$.hostnameLabel')) = ?"
            " AND json_extract(body, '$.hostnameLabel') IS NOT NULL AND json_extract(body, '$.subnetId') = ?"
        )
        return self._select(where, (label.lower(), subnet))

    def forget(self, *, gone_before: float) -> int:
        """Delete the rows of resources that are gone since before that time, and old retry tokens.

        Returns the number of deleted resources.
        """
        with self._lock:
            # Instances may exist much longer than their image, and still refer to its row.
            cursor = self._db.execute("DELETE FROM resource WHERE gone_at < ? AND kind <> 'image'", (gone_before,))
            self._db.execute("DELETE FROM retry WHERE made_at < ?", (time.time() - _RETRY_TOKEN_LIFE,))
            return cursor.rowcount

    def drop(self, ocid: str) -> None:
        """Delete a row at once (for a create that failed before a client saw it)."""
        with self._lock:
            self._db.execute("DELETE FROM resource WHERE id = ?", (ocid,))
            self._db.execute("DELETE FROM retry WHERE resource = ?", (ocid,))

    def _select(self, where: str, values: tuple[object, ...], order: str = "") -> list[Resource]:
        # `where` contains only names from our own code; values are passed as parameters.
        sql = f"SELECT id, kind, body, hidden, seq, version, gone_at FROM resource WHERE {where}"  # noqa: S608
        with self._lock:
            rows = self._db.execute(f"{sql} ORDER BY seq {order}", values).fetchall()
        return [Resource(r[0], r[1], json.loads(r[2]), json.loads(r[3]), r[4], r[5], r[6]) for r in rows]

    # addresses

    def take_address(self, space: str, address: str, owner: str) -> bool:
        """Reserve an address in a space (a subnet's OCID, or "public"); False if it is taken."""
        with self._lock:
            cursor = self._db.execute(
                "INSERT OR IGNORE INTO address (space, address, owner) VALUES (?, ?, ?)", (space, address, owner)
            )
            return cursor.rowcount == 1

    def taken_addresses(self, space: str) -> set[str]:
        """Every reserved address of a space."""
        with self._lock:
            rows = self._db.execute("SELECT address FROM address WHERE space = ?", (space,)).fetchall()
        return {str(row[0]) for row in rows}

    def release_addresses(self, owner: str) -> None:
        """Release all addresses of an owner."""
        with self._lock:
            self._db.execute("DELETE FROM address WHERE owner = ?", (owner,))

    def give_address(self, space: str, address: str, owner: str) -> None:
        """Give a reserved address to another owner."""
        with self._lock:
            self._db.execute("UPDATE address SET owner = ? WHERE space = ? AND address = ?", (owner, space, address))

    def release_address(self, space: str, address: str) -> None:
        """Release one address."""
        with self._lock:
            self._db.execute("DELETE FROM address WHERE space = ? AND address = ?", (space, address))

    # retry tokens

    def retry(self, token: str) -> Retry | None:
        """What was created with this opc-retry-token."""
        with self._lock:
            row = self._db.execute(
                "SELECT operation, digest, resource, work_request FROM retry WHERE token = ?", (token,)
            ).fetchone()
        return None if row is None else Retry(*row)

    def remember_retry(self, token: str, retry: Retry) -> None:
        """Store what was created; call this in the transaction of the create."""
        with self._lock:
            self._db.execute(
                "INSERT INTO retry (token, operation, digest, resource, work_request, made_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (token, retry.operation, retry.digest, retry.resource, retry.work_request, time.time()),
            )

    # settings

    def setting(self, key: str) -> str | None:
        """A stored setting; None if there is none."""
        with self._lock:
            row = self._db.execute("SELECT value FROM setting WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_setting(self, key: str, value: str) -> None:
        """Store a setting."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO setting (key, value) VALUES (?, ?)", (key, value))


def _where(kind: str, gone: bool | None, fields: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
    where = ["kind = ?"]
    if gone is not None:
        where.append("gone_at IS NOT NULL" if gone else "gone_at IS NULL")
    where += [f"json_extract(body, '$.{name}') = ?" for name in fields]
    return " AND ".join(where), (kind, *fields.values())


def _dump(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))
