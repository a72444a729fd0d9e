"""Users from a CSV file: a header with the columns, then one line per user. Lists are separated by `;`."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from gpucluster.controller.users.desired import IMPORT
from gpucluster.node_agent.errors import Refused

_NUMBERS = frozenset({"uid", "gid"})
_LISTS = frozenset({"groups", "ssh_keys"})
_BETWEEN = ";"
_HEADER = f"Begin with a line of these columns: {', '.join(sorted(IMPORT))}; `name` must be one of them"


def is_csv(name: str, text: str) -> bool:
    """Whether a file is CSV and not JSON, by its name, else by its first character."""
    return name.lower().endswith(".csv") or (
        not name.lower().endswith(".json") and text.lstrip("\ufeff \r\n")[:1] not in "[{"
    )


def users(text: str) -> list[dict[str, Any]]:
    """What each line gives; empty cells give nothing. The values are checked later.

    Raises:
        Refused: it is not a CSV file with these columns.
    """
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True)
    header: list[str] = []
    entries: list[dict[str, Any]] = []
    try:
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                _check_header(header)
            elif len(cells) > len(header):
                message = f"line {rows.line_num} has {len(cells)} cells, and there are {len(header)} columns"
                raise Refused(message, "Quote what has a comma in it")
            else:
                entries.append({key: _value(key, cell.strip()) for key, cell in zip(header, cells) if cell.strip()})
    except csv.Error as error:
        raise Refused(f"line {rows.line_num} is not CSV: {error}", "Check the quotes in this line") from error
    if not header:
        raise Refused("the file is empty", _HEADER)
    return entries


def _check_header(header: list[str]) -> None:
    if "password" in header:
        raise Refused("a password must not be in a file", "Give one later: cluster user edit NAME --password-stdin")
    if "name" not in header or len(set(header)) < len(header) or not set(header) <= IMPORT:
        raise Refused("the first line does not name the columns, each once", _HEADER)


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [part.strip() for part in text.split(_BETWEEN) if part.strip()]
    return int(text) if key in _NUMBERS and re.fullmatch(r"[0-9]{1,18}", text) else text
