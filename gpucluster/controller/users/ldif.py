"""LDIF (RFC 2849): records that change the directory, and the server's answers."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

Entry = dict[str, list[str]]
NOTHING: Mapping[str, Sequence[str]] = {}


def line(key: str, value: str) -> str:
    """One attribute; a value that LDIF can't hold as it is is written in base64."""
    plain = value.isascii() and not re.search(r"[\x00-\x1f\x7f]", value) and not re.match(r"[ :<]", value)
    if plain and not value.endswith(" "):
        return f"{key}: {value}"
    return f"{key}:: {base64.b64encode(value.encode()).decode()}"


def _record(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def add(dn: str, attributes: Iterable[tuple[str, str]]) -> str:
    """A record that adds an entry."""
    return _record([line("dn", dn), "changetype: add", *(line(key, value) for key, value in attributes)])


def modify(
    dn: str,
    replace: Mapping[str, Sequence[str]] = NOTHING,
    *,
    add: Mapping[str, Sequence[str]] = NOTHING,
    delete: Mapping[str, Sequence[str]] = NOTHING,
) -> str:
    """A record that replaces the values of attributes (an empty list removes all), adds some, or deletes some."""
    lines = [line("dn", dn), "changetype: modify"]
    # Classes first: they allow the attributes that follow.
    for verb, changes in (("add", add), ("delete", delete), ("replace", replace)):
        for key, values in changes.items():
            lines += [f"{verb}: {key}", *(line(key, value) for value in values), "-"]
    return _record(lines)


def delete(dn: str) -> str:
    """A record that deletes an entry."""
    return _record([line("dn", dn), "changetype: delete"])


def parse(text: str, binary: Collection[str] = ()) -> list[Entry]:
    """The records of an unwrapped answer; attribute names in lower case.

    Args:
        binary: attributes, in lower case, whose values are not text: they stay in base64.
    """
    entries: list[Entry] = []
    for record in re.split(r"\n\s*\n", text.strip()):
        entry: Entry = {}
        for item in record.split("\n"):
            if item.startswith("#") or ":" not in item:
                continue
            key, value = item.split(":", 1)
            if value.startswith(":") and key.lower() in binary:
                value = value[1:].strip()
            elif value.startswith(":"):
                value = base64.b64decode(value[1:].strip()).decode(errors="replace")
            else:
                value = value[1:] if value.startswith(" ") else value
            entry.setdefault(key.lower(), []).append(value)
        if entry:
            entries.append(entry)
    return entries
