"""A file of many users, read strictly: YAML (a list, or a list under `users`) or CSV (a header, then a line for each).

All errors are reported at once, each with its line. Only the form of the file is checked here; the directory on the
controller decides which names and numbers are allowed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.controller.rules import ssh_keys
from gpucluster.errors import InputError, InputFinding
from gpucluster.spec import document, keys
from gpucluster.spec.document import Document, SourceLocation
from gpucluster.spec.messages import shown
from gpucluster.spec.sections.fields import located
from gpucluster.text import count, did_you_mean, printable

MAX_CSV_BYTES = 4 * 1024 * 1024

_TEXTS = ("name", "full_name", "group", "shell", "slurm_account")
_NUMBERS = ("uid", "gid")
_LISTS = ("groups", "ssh_keys", "ssh_key_files")
_KNOWN = (*_TEXTS, *_NUMBERS, *_LISTS)
_NO_PASSWORDS = "Give one later: gpucluster user edit NAME --password-stdin"
_SEPARATOR = ";"
# Invisible characters that some languages can't be written without.
_JOINERS = re.compile("[\u200c\u200d]")

Entry = tuple[str | int, ...]


def read(file: Path) -> list[dict[str, Any]]:
    """The users of a file, in the form that the directory takes: keys from files are read.

    Raises:
        InputError: it can't be read or is wrong; `findings` has every error.
    """
    is_csv = file.suffix.lower() == ".csv"
    limit = MAX_CSV_BYTES if is_csv else document.MAX_BYTES
    try:
        with file.open("rb") as stream:
            raw = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"the file can't be read: {reason}", where=str(file)) from error
    if len(raw) > limit:
        hint = "Import it in parts" if is_csv else "Import it in parts, or write it as CSV"
        raise InputError(f"the file is too large: at most {limit} bytes are read", where=str(file), hint=hint)
    doc = _csv(raw, str(file)) if is_csv else document.read_any(raw, str(file))
    people = _people(doc, file.absolute().parent)
    if doc.findings:
        readable = {replace(each, path=printable(each.path), message=printable(each.message)) for each in doc.findings}
        errors = sorted(readable, key=lambda error: (error.line, error.column, error.path, error.message))
        raise InputError(f"{file}: {count(len(errors), 'error')}; no user was imported", findings=errors)
    return people


# --- CSV: as if it were YAML -----


def _csv(raw: bytes, name: str) -> Document:
    """The rows under `users`, with the line of each; empty cells are left out."""
    doc = Document(name)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        doc.findings.append(InputFinding(name, line, 1, "", "not UTF-8", "Save the file as UTF-8"))
        return doc
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    people: list[dict[str, Any]] = []
    header: list[str] = []
    line = 1
    try:
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                pass
            elif not header:
                header = [cell.strip() for cell in cells]
                if not _check_header(doc, header, line):
                    return doc
            else:
                people.append(_row(doc, header, cells, line, ("users", len(people))))
            line = rows.line_num + 1
    except csv.Error as error:
        doc.findings.append(InputFinding(name, line, 1, "", f"not CSV: {error}", "Check the quotes in this line"))
    doc.data = {"users": tuple(people)}
    return doc


def _check_header(doc: Document, header: list[str], line: int) -> bool:
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if "name" not in header:
        message = f"the first line must name the columns, and one of them `name`; got {shown(','.join(header))}"
        doc.findings.append(InputFinding(doc.file, line, 1, "", message, f"Known columns: {', '.join(_KNOWN)}"))
    elif twice:
        doc.findings.append(InputFinding(doc.file, line, 1, "", f"columns occur twice: {', '.join(twice)}"))
    return not doc.findings


def _row(doc: Document, header: list[str], cells: list[str], line: int, path: Entry) -> dict[str, Any]:
    doc.values[path] = SourceLocation(line, 1)
    if len(cells) > len(header):
        doc.error(path, f"has {len(cells)} cells, and there are {len(header)} columns", "Quote what has a comma in it")
    person: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=False):
        text = cell.strip()
        if not text:
            continue
        doc.values[*path, column] = SourceLocation(line, 1)
        if not _JOINERS.sub("", text).isprintable():
            doc.error(
                (*path, column), f"has a character that can't be seen: {shown(text.encode('unicode_escape').decode())}"
            )
        elif column in _LISTS:
            person[column] = tuple(part.strip() for part in text.split(_SEPARATOR) if part.strip())
        else:
            whole = column in _NUMBERS and re.fullmatch(r"[0-9]{1,18}", text)
            person[column] = int(text) if whole else text
    return person


# --- one user -----


def _people(doc: Document, directory: Path) -> list[dict[str, Any]]:
    """All users; each error is added to the document."""
    root: Entry = ()
    entries = doc.data
    if isinstance(entries, dict):
        for key in entries:
            if key != "users":
                doc.error((key,), "unknown key", "A file of users has one: users", key=True)
        root, entries = ("users",), entries.get("users")
    if not isinstance(entries, tuple) or not entries:
        if not doc.findings:
            doc.error(root, "there are no users in it", "Write a list of users, each with a `name`")
        return []
    people, seen = [], _Seen(doc)
    for index, entry in enumerate(entries):
        path = (*root, index)
        if isinstance(entry, dict):
            people.append(_person(doc, path, entry, directory))
            seen.note(path, people[-1])
        else:
            doc.error(path, f"must hold keys with values; got {shown(entry)}", "Such as `- name: alice`")
    return people


class _Seen:
    """Names and numbers that may be used only once."""

    def __init__(self, doc: Document) -> None:
        self._doc = doc
        self._where: dict[tuple[str, Any], Entry] = {}

    def note(self, path: Entry, person: dict[str, Any]) -> None:
        """Check and note the name and the number of one user."""
        for key in ("name", "uid"):
            if key in person:
                first = self._where.setdefault((key, person[key]), path)
                if first != path:
                    line = self._doc.place((*first, key)).line
                    self._doc.error((*path, key), f"{shown(person[key])} occurs twice, first in line {line}")


def _person(doc: Document, path: Entry, entry: dict[str, Any], directory: Path) -> dict[str, Any]:
    person: dict[str, Any] = {}
    for key, value in entry.items():
        where = (*path, key)
        if where in doc.invalid or value is None:
            continue
        if key == "password":
            doc.error(where, "a password must not be in a file", _NO_PASSWORDS, key=True)
        elif key not in _KNOWN:
            doc.error(where, "unknown key", did_you_mean(key, _KNOWN) or f"Known: {', '.join(_KNOWN)}", key=True)
        elif _fits(doc, where, key, value):
            person[key] = list(value) if key in _LISTS else value
    if "name" not in entry or entry["name"] is None:
        doc.error(path, "has no name")
    if "gid" in person and "group" in person:
        doc.error((*path, "gid"), "gid and group both name the primary group", "Write one of them")
    has_keys = "ssh_keys" in person or "ssh_key_files" in person
    files = person.pop("ssh_key_files", ())
    texts = person.pop("ssh_keys", ())
    checked = [*_texts(doc, (*path, "ssh_keys"), texts), *_files(doc, (*path, "ssh_key_files"), files, directory)]
    return {**person, "ssh_keys": checked} if has_keys else person


def _fits(doc: Document, where: Entry, key: str, value: Any) -> bool:
    """Whether a value is of the right kind; adds an error if not."""
    if key in _NUMBERS:
        good, expected = type(value) is int, "a whole number"
    elif key in _LISTS:
        good = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        expected = "a list of texts"
    else:
        good, expected = isinstance(value, str), "text"
    if not good:
        doc.error(where, f"must be {expected}; got {doc.texts.get(where) or shown(value)}")
    return good


def _texts(doc: Document, where: Entry, texts: list[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        try:
            yield ssh_keys.check(text)
        except ssh_keys.BadKey as bad:
            doc.error((*where, index), f"the key is {bad.message}", bad.hint)


def _files(doc: Document, where: Entry, names: list[str], directory: Path) -> Iterator[str]:
    for index, name in enumerate(names):
        try:
            yield from keys.read(located(name, directory))
        except ssh_keys.BadKey as bad:
            doc.error((*where, index), bad.message, bad.hint)
        except (RuntimeError, ValueError):
            doc.error((*where, index), f"can't be the name of a file: {shown(name)}")
