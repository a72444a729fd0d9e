"""One line of JSON for each event, to standard output; systemd's journal stores them.

The subjects of an event are in fields with fixed names, so that `journalctl -o cat | jq` can find them: job, gang,
node, pool, generation, instance, opc_request_id.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any, TextIO

_FIELD = "gpucluster_fields"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, _FIELD, {}),
        }
        if record.exc_info and record.exc_info[0]:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


class DaemonLog:
    """Writes events with fields; empty fields are left out."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"gpucluster.autoscaler.{name}")

    def info(self, event: str, **fields: Any) -> None:
        """Something was done."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something went wrong and will be tried again."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, trace: bool = False, **fields: Any) -> None:
        """Something failed, and an administrator may have to act. `trace` adds the handled exception."""
        self._write(logging.ERROR, event, fields, exc_info=trace)

    def _write(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        kept = {name: value for name, value in fields.items() if value not in ("", None, ())}
        self._logger.log(level, event, extra={_FIELD: kept}, exc_info=exc_info)


def to_stream(stream: TextIO | None = None) -> None:
    """Send the events of the autoscaler to a stream (standard output)."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(_Lines())
    logger = logging.getLogger("gpucluster.autoscaler")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
