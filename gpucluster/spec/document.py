"""A YAML reader that stores the line and column of every key and value.

It accepts a small, strict subset of YAML: one document; text, whole numbers, `true`, `false` and `null` as in YAML 1.2
(so `no` is text and `010` is not a number); no tags and no merge keys. Aliases are allowed, but the data that they
expand to is limited. Everything that it refuses becomes a Finding; nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from gpucluster.errors import InputFinding
from gpucluster.text import printable

Path = tuple[str | int, ...]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_VALUES = 20_000

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_NULLS = frozenset({"", "~", "null"})
_BOOLS = {"true": True, "false": False}
_TEXT_TAGS = frozenset({None, "!", "tag:yaml.org,2002:str"})
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_INDENT_TAB = re.compile(r"[ ]*\t")

#: Messages of PyYAML's scanner and parser, with our message and hint.
_SYNTAX_WORDS = (
    (
        "mapping values are not allowed here",
        "a `:` that is not allowed here",
        "Check the indentation, or quote the text",
    ),
    ("could not find expected ':'", "a key without a `:` after it", "Write `key: value`"),
    ("expected <block end>", "the indentation does not match", "Lines of one level begin in the same column"),
    ("while scanning a quoted scalar", "a quote that is never closed", "Add the closing quote"),
    ("found undefined alias", "an alias without an anchor", "Define it with & before it is used"),
    ("found duplicate anchor", "an anchor that is already defined", "Choose another name"),
    ("cannot start any token", "a character that can't begin a value", "Put the text in quotes"),
    ("expected ',' or ']'", "a list that is never closed", "Add the closing ]"),
    ("expected ',' or '}'", "a mapping that is never closed", "Add the closing }"),
    ("expected a single document", "a second document", "Keep one cluster per file"),
)


#: What begins a template of Jinja. Ansible takes each variable for one.
TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(frozen=True)
class SourceLocation:
    """A position in the file; both numbers count from 1."""

    line: int
    column: int


@dataclass
class Document:
    """A file that was read. `data` holds dicts, tuples, str, int, float, bool and None; `findings` what was refused.

    `keys` and `values` have the position of the key and of the value of a path, `texts` the spelling of a value (24.10,
    not the 24.1 that it would be as a number), `invalid` the paths that already have an error, though `data` has a
    value there.
    """

    file: str
    data: Any = None
    keys: dict[Path, SourceLocation] = field(default_factory=dict)
    values: dict[Path, SourceLocation] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=dict)
    invalid: set[Path] = field(default_factory=set)
    findings: list[InputFinding] = field(default_factory=list)

    def place(self, path: Path, *, key: bool = False) -> SourceLocation:
        """The position of the value (or the key) of `path`; if that is missing, the position of its parent."""
        while path:
            first, second = (self.keys, self.values) if key else (self.values, self.keys)
            location = first.get(path) or second.get(path)
            if location:
                return location
            path, key = path[:-1], True
        return SourceLocation(1, 1)

    def error(self, path: Path, message: str, hint: str = "", *, key: bool = False) -> None:
        """Add an error of the value (or the key) at `path`."""
        _report(self, self.place(path, key=key), message, hint, path)

    def refuse_lines(self) -> None:
        """Add an error of each text with a tab or several lines that has none yet: in a file of another program it
        could begin a line of its own. A block that begins with | ends with a line break, which does no harm. And of
        each that would be a template of Jinja: Ansible runs what is in one.
        """
        known = {finding.path for finding in self.findings}
        for path, text in self.texts.items():
            if ("\t" in text or "\n" in text.strip("\n")) and dotted(path) not in known:
                self.error(
                    path, "has a tab or several lines", "Write it on one line; begin each of several values with -"
                )
            elif TEMPLATE.search(text) and dotted(path) not in known:
                self.error(path, "has {{, {% or {#, and Ansible would run it as a template", "Write it without them")


def dotted(path: Path) -> str:
    """A path in its usual notation: users.people[0].name"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read(raw: bytes | str, file: str) -> Document:
    """Read a file with a mapping. The result has findings or data; data that is not a mapping is a finding, too."""
    document = read_any(raw, file)
    if not isinstance(document.data, dict) and (document.data is not None or not document.findings):
        what = "the file is empty" if document.data is None else "the file must contain keys with values"
        _report(document, SourceLocation(1, 1), what, "Begin with `version: 1`; `gpucluster init` writes a whole file")
    if document.findings and not isinstance(document.data, dict):
        document.data = None
    return document


def read_any(raw: bytes | str, file: str) -> Document:
    """Read a file with any content, such as a list."""
    document = Document(file)
    text = _decode(raw, document)
    if text is None or not _plain_text(text, document):
        return document
    try:
        _Reader(document).read(text)
    except yaml.MarkedYAMLError as error:
        _syntax(error, document)
    except yaml.YAMLError as error:
        _report(document, SourceLocation(1, 1), f"not YAML: {error}")
    except _Refused as refused:
        _report(document, refused.place, refused.message, refused.hint)
    return document


class _Refused(Exception):
    """The rest of the file can't be read; the error is at `place`."""

    def __init__(self, place: SourceLocation, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.place, self.message, self.hint = place, message, hint


def _report(document: Document, place: SourceLocation, message: str, hint: str = "", path: Path = ()) -> None:
    """The one place where a finding is made: words of the file that are in it can't become lines of their own."""
    words = [printable(text) for text in (dotted(path), message, hint)]
    document.findings.append(InputFinding(document.file, place.line, place.column, *words))


def _decode(raw: bytes | str, document: Document) -> str | None:
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB"
        _report(document, SourceLocation(1, 1), message, "Check that this is a cluster.yml")
        return None
    if isinstance(raw, str):
        return raw.removeprefix("\ufeff")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8", errors="replace")
        place = SourceLocation(good.count("\n") + 1, len(good) - good.rfind("\n"))
        _report(document, place, f"not UTF-8: byte 0x{raw[error.start]:02x}", "Save the file as UTF-8")
        return None


def _plain_text(text: str, document: Document) -> bool:
    """No tabs in the indentation, no control characters: both are hard to see."""
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole.removesuffix("\r")
        tab = _INDENT_TAB.match(line)
        if tab and line.strip():
            _report(document, SourceLocation(number, tab.end()), "a tab in the indentation", "YAML requires spaces")
        strange = _UNPRINTABLE.search(line)
        if strange:
            place = SourceLocation(number, strange.start() + 1)
            _report(document, place, _invisible(strange), "Delete it and type the line again")
    return not document.findings


def _syntax(error: yaml.MarkedYAMLError, document: Document) -> None:
    problem = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    place = SourceLocation(mark.line + 1, mark.column + 1) if mark else SourceLocation(1, 1)
    for theirs, ours, hint in _SYNTAX_WORDS:
        if theirs in problem:
            _report(document, place, ours, hint)
            return
    _report(document, place, f"not YAML: {problem.strip()}")


@dataclass(frozen=True)
class _Node:
    """A value as the file has it. `content`: text, nodes, pairs of nodes, or the node of an alias."""

    kind: Literal["scalar", "list", "mapping", "alias"]
    place: SourceLocation
    content: Any
    plain: bool = True
    tagged: bool = False


class _Reader:
    """Builds a tree of nodes first, then the data. Depth and size are limited, so that stack and memory suffice."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.events: Iterator[Any] = iter(())
        self.anchors: dict[str, _Node] = {}
        self.open_anchors: set[str] = set()
        self.values = 0

    def read(self, text: str) -> None:
        """Read the one document of `text`."""
        self.events = yaml.parse(text, Loader=yaml.SafeLoader)
        root: _Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _Refused(_start(event), "a second document", "Keep one cluster per file")
                root = self._node(next(self.events), 0)
        if root is not None:
            self.document.data = self._value(root, (), 0)

    def _node(self, event: Any, depth: int) -> _Node:
        place = _start(event)
        if depth > MAX_DEPTH:
            raise _Refused(place, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.open_anchors:
                raise _Refused(place, f"the alias *{event.anchor} is inside the value that it refers to")
            if event.anchor not in self.anchors:
                hint = f"Define &{event.anchor} before it is used"
                raise _Refused(place, f"the alias *{event.anchor} has no anchor", hint)
            return _Node("alias", place, self.anchors[event.anchor])
        if event.anchor is None:
            return self._content(event, place, depth)
        if event.anchor in self.anchors or event.anchor in self.open_anchors:
            raise _Refused(place, f"the anchor &{event.anchor} is already defined", "Choose another name")
        self.open_anchors.add(event.anchor)
        node = self._content(event, place, depth)
        self.open_anchors.discard(event.anchor)
        self.anchors[event.anchor] = node
        return node

    def _content(self, event: Any, place: SourceLocation, depth: int) -> _Node:
        tagged = event.tag not in _TEXT_TAGS
        if isinstance(event, yaml.ScalarEvent):
            return _Node("scalar", place, event.value, event.style is None and event.tag is None, tagged)
        inner: list[_Node] = []
        while not isinstance(child := next(self.events), yaml.CollectionEndEvent):
            inner.append(self._node(child, depth + 1))
        if isinstance(event, yaml.SequenceStartEvent):
            return _Node("list", place, tuple(inner), tagged=tagged)
        return _Node("mapping", place, tuple(zip(inner[::2], inner[1::2], strict=True)), tagged=tagged)

    def _value(self, node: _Node, path: Path, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            hint = "Use fewer aliases" if self.anchors else ""
            raise _Refused(node.place, f"too large: more than {MAX_VALUES} values", hint)
        if depth > MAX_DEPTH:
            raise _Refused(node.place, f"nested more than {MAX_DEPTH} levels deep")
        self.document.values.setdefault(path, node.place)
        if node.kind == "alias":
            return self._value(node.content, path, depth)
        if node.tagged:
            self.document.invalid.add(path)
            self.document.error(path, "tags are not supported", "Delete the word that begins with !")
        if node.kind == "list":
            return tuple(self._value(item, (*path, index), depth + 1) for index, item in enumerate(node.content))
        if node.kind == "mapping":
            return self._mapping(node, path, depth)
        return self._scalar(node, path)

    def _mapping(self, node: _Node, path: Path, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for key_node, value_node in node.content:
            target = key_node.content if key_node.kind == "alias" else key_node
            if target.kind != "scalar":
                self._refuse_key(key_node, path, "a key must be text", "")
                continue
            key: str = target.content
            strange = _UNPRINTABLE.search(key)
            if strange:
                self._refuse_key(key_node, path, _invisible(strange), "Delete it")
                continue
            inner: Path = (*path, key)
            if key in items:
                first = self.document.keys[inner].line
                self._refuse_key(key_node, inner, f"the key occurs twice, first in line {first}", "Delete one of them")
                continue
            self.document.keys[inner] = key_node.place
            if target.plain and key == "<<":
                self.document.error(inner, "merge keys are not supported", "Write the values out", key=True)
                continue
            if target.plain and not isinstance(_plain_value(key), str):
                self.document.invalid.add(inner)
                self.document.error(inner, "a key must be text", f'Write it in quotes: "{key}"', key=True)
            items[key] = self._value(value_node, inner, depth + 1)
        return items

    def _refuse_key(self, node: _Node, path: Path, message: str, hint: str) -> None:
        _report(self.document, node.place, message, hint, path)

    def _scalar(self, node: _Node, path: Path) -> Any:
        text: str = node.content
        strange = _UNPRINTABLE.search(text)
        if strange:
            self.document.invalid.add(path)
            _report(self.document, node.place, _invisible(strange), "Delete it", path)
            return ""
        self.document.texts[path] = text
        return _plain_value(text) if node.plain else text


def _invisible(strange: re.Match[str]) -> str:
    return f"an invisible character: U+{ord(strange[0]):04X}"


def _plain_value(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text.lower() in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _start(event: Any) -> SourceLocation:
    return SourceLocation(event.start_mark.line + 1, event.start_mark.column + 1)
