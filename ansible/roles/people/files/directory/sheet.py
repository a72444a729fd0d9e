"""A file of many people as CSV: a line that names the columns, then one line for each. Lists are separated by `;`."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from directory.errors import Refused
from directory.wishes import IMPORT

_NUMBERS = frozenset({"uid", "gid"})
_LISTS = frozenset({"groups", "ssh_keys"})
_BETWEEN = ";"
_HEAD = f"Begin with a line of these columns: {', '.join(sorted(IMPORT))}; `name` must be one of them"


def is_sheet(name: str, text: str) -> bool:
    """Whether a file is CSV and not JSON; `-` says nothing by its name."""
    return name.lower().endswith(".csv") or (
        not name.lower().endswith(".json") and text.lstrip("\ufeff \r\n")[:1] not in "[{"
    )


def people(text: str) -> list[dict[str, Any]]:
    """What each line says; empty cells say nothing. What a person may be is checked later.

    Raises:
        Refused: it is no such file.
    """
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True)
    head: list[str] = []
    found: list[dict[str, Any]] = []
    try:
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            if not head:
                head = [cell.strip() for cell in cells]
                _check_head(head)
            elif len(cells) > len(head):
                message = f"line {rows.line_num} has {len(cells)} cells, and there are {len(head)} columns"
                raise Refused(message, "Quote what has a comma in it")
            else:
                found.append({key: _value(key, cell.strip()) for key, cell in zip(head, cells) if cell.strip()})
    except csv.Error as error:
        raise Refused(f"line {rows.line_num} is no CSV: {error}", "Look at the quotes in this line") from error
    if not head:
        raise Refused("the file is empty", _HEAD)
    return found


def _check_head(head: list[str]) -> None:
    if "password" in head:
        raise Refused("a password must not lie in a file", "Give one later: cluster user edit NAME --password-stdin")
    if "name" not in head or len(set(head)) < len(head) or not set(head) <= IMPORT:
        raise Refused("the first line does not name the columns, each once", _HEAD)


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [part.strip() for part in text.split(_BETWEEN) if part.strip()]
    return int(text) if key in _NUMBERS and re.fullmatch(r"[0-9]{1,18}", text) else text
