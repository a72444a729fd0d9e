"""Reads a terraform.tfvars: assignments of literal values.

Source: the native syntax of HCL, and "Assigning values with variable definitions files" of Terraform. An expression
that is not a literal is refused, as Terraform refuses it there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_TOKENS = re.compile(
    r"""(?P<space>[ \t\r]+)
    |(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)
    |(?P<newline>\n)
    |<<(?P<indented>-?)(?P<mark>[A-Za-z_][\w-]*)[ \t]*\n(?P<heredoc>.*?)\n[ \t]*(?P=mark)[ \t]*(?=\n|$)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![\w.]))
    |(?P<word>[A-Za-z_][\w-]*)
    |(?P<sign>[=:,{}\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


class NotTfvars(Exception):
    """The text is not a terraform.tfvars. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class _Token:
    kind: str
    value: Any
    line: int


def read(text: str) -> dict[str, Any]:
    """The variables of the text, by their names.

    Raises:
        NotTfvars: a line is something else than an assignment of a literal.
    """
    return _Reader(text).assignments()


def _tokens(text: str) -> Iterator[_Token]:
    place, line = 0, 1
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise NotTfvars(line, "not the assignment of a literal value")
        kind = "heredoc" if match["mark"] else str(match.lastgroup)
        if kind not in ("space", "comment"):
            yield _Token(kind, _value(kind, match), line)
        line += match[0].count("\n")
        place = match.end()
    yield _Token("end", "", line)


def _value(kind: str, match: re.Match[str]) -> Any:
    if kind == "heredoc":
        lines = match["heredoc"].split("\n")
        return "\n".join(line.lstrip() if match["indented"] else line for line in lines) + "\n"
    if kind == "text":
        return _unquoted(match[0])
    if kind == "number":
        return float(match[0]) if "." in match[0] else int(match[0])
    return match[0]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text[1:-1]


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    def assignments(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while self._peek(skip=True).kind != "end":
            name = self._take()
            if name.kind not in ("word", "text") or self._take().value != "=":
                raise NotTfvars(name.line, "not the assignment of a literal value")
            values[name.value] = self._literal()
            after = self._peek()
            if after.kind not in ("newline", "end"):
                raise NotTfvars(after.line, "more than one literal value")
        return values

    def _peek(self, *, skip: bool = False) -> _Token:
        while skip and self._tokens[self._next].kind == "newline":
            self._next += 1
        return self._tokens[self._next]

    def _take(self, *, skip: bool = False) -> _Token:
        token = self._peek(skip=skip)
        if token.kind == "end":
            raise NotTfvars(token.line, "the file ends within a value")
        self._next += 1
        return token

    def _literal(self) -> Any:
        token = self._take()
        if token.kind in ("text", "number", "heredoc"):
            if isinstance(token.value, str) and ("${" in token.value or "%{" in token.value):
                raise NotTfvars(token.line, "a template, and not a literal value")
            return token.value
        if token.value == "[":
            return self._list()
        if token.value == "{":
            return self._map()
        if token.kind == "word" and token.value in _WORDS:
            return _WORDS[token.value]
        raise NotTfvars(token.line, "not a literal value")

    def _list(self) -> list[Any]:
        values = []
        while self._peek(skip=True).value != "]":
            values.append(self._literal())
            if self._peek(skip=True).value == ",":
                self._take()
        self._take()
        return values

    def _map(self) -> dict[str, Any]:
        values = {}
        while self._peek(skip=True).value != "}":
            name = self._take()
            if name.kind not in ("word", "text") or self._take().value not in ("=", ":"):
                raise NotTfvars(name.line, "not a key with a value")
            values[name.value] = self._literal()
            if self._peek(skip=True).value == ",":
                self._take()
        self._take()
        return values
