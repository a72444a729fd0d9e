"""The decisions of the health service on disk: one JSON object a line, each on the disk before Slurm gets it.

A process that is killed leaves at most a last line that is cut off. Reading ignores a line that is none, and writing
begins a new one behind it. What Slurm has done and the journal lacks is found by `policy.settle`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpucluster.controller.health.policy import AGAIN, JournalRecord, Moment, RecordKind
from gpucluster.node_agent.durable_file import replace, sync_folder

#: When the file is longer than this, in bytes, records that matter no more are left out of it.
_LONG = 4 * 1024 * 1024


class Journal:
    """The file. A writer holds the lock of the folder (`store.Store.locked`)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._records: list[JournalRecord] = []

    def read(self) -> list[JournalRecord]:
        """All records, oldest first. Another process may have written some."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._seen, self._records = None, []
            return []
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            lines = self._file.read_text(errors="replace").splitlines()
            self._records = [record for line in lines if (record := _parse(line)) is not None]
            self._seen = seen
        return list(self._records)

    def append(self, *records: JournalRecord) -> None:
        """Write records; they are on the disk when this returns."""
        if not records:
            return
        text = "".join(_line(record) for record in records)
        new = not self._file.exists()
        with self._file.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    text = "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self._file.parent)

    def shorten(self, now: Moment) -> None:
        """Leave out what matters no more, if the file has become long."""
        if not self._file.exists() or self._file.stat().st_size < _LONG:
            return
        records = self.read()
        closed = {record.node: number for number, record in enumerate(records) if record.kind is RecordKind.ENDED}
        kept = [
            record
            for number, record in enumerate(records)
            if now.since(record.at) < 2 * AGAIN or number > closed.get(record.node, -1)
        ]
        replace(self._file, "".join(_line(record) for record in kept))


def to_dict(record: JournalRecord) -> dict[str, Any]:
    """As a JSON object."""
    return {**vars(record), "kind": record.kind.value, "at": vars(record.at), "checks": list(record.checks)}


def _line(record: JournalRecord) -> str:
    return json.dumps(to_dict(record)) + "\n"


def _parse(line: str) -> JournalRecord | None:
    try:
        raw = json.loads(line)
        at = moment(raw["at"])
        # Lines of earlier versions have no boot.
        words = [raw[key] for key in ("node", "pool", "reason", "instance")] + [raw.get("boot", "")]
        checks: Iterable[Any] = raw["checks"]
        if not all(isinstance(word, str) for word in (*words, *checks)):
            return None
        kind = RecordKind(raw["kind"])
        return JournalRecord(kind, words[0], at, words[1], tuple(checks), words[2], words[3], words[4])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def moment(raw: Any) -> Moment:
    """A moment from a JSON object.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    return Moment(float(raw["wall"]), str(raw["boot"]), float(raw["up"]))
