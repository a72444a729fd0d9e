"""The change of one attribute, as text: element by element, so that two different values never look the same."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from gpucluster.terraform.plan import CHANGED, SENSITIVE, UNKNOWN
from gpucluster.text import printable

# The number of characters that are shown of one value, and of what is equal beside a difference in a long one.
_WIDTH, _BESIDE = 160, 16
# IANA's protocol numbers, as OCI has them in the rules of security lists.
_PROTOCOLS = {"1": "icmp", "6": "tcp", "17": "udp", "58": "icmpv6", "all": "all protocols"}
_DIRECTIONS = {
    "ingress_security_rules": ("ingress", "from", "source"),
    "egress_security_rules": ("egress", "to", "destination"),
}


@dataclass(frozen=True)
class ValueDifference:
    """What is different in a value; `before` and `after` are never the same text.

    Args:
        path: where, such as `source_details.kms_key_id`.
        before, after: as text; None: there is nothing.
        element: it is an element of the list at `path`, wherever in it.
    """

    path: str
    before: str | None
    after: str | None
    element: bool = False


def changed_lines(name: str, before: Any, after: Any) -> tuple[str, ...]:
    """How a value changes: `name: old -> new`; for lists and objects, what is removed (-) and what is added (+).

    Args:
        name: of the attribute.
        before, after: values as JSON has them.
    """
    lines, of_list = [], ""
    for each in differences(name, before, after):
        if each.element and each.path != of_list:
            lines.append(f"{each.path}:")
        of_list = each.path if each.element else ""
        start = "  " if each.element else f"{each.path}: "
        if each.before is None:
            lines.append(f"{start}+ {each.after}")
        elif each.after is None:
            lines.append(f"{start}- {each.before}")
        else:
            lines.append(f"{start}{each.before} -> {each.after}")
    return tuple(lines)


def differences(path: str, before: Any, after: Any) -> Iterator[ValueDifference]:
    """All differences of two values, as JSON has them; none if they are the same."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            inner = f"{path}.{printable(key)}"
            if key not in before:
                yield ValueDifference(inner, None, _cut(_json(after[key])))
            elif key not in after:
                yield ValueDifference(inner, _cut(_json(before[key])), None)
            else:
                yield from differences(inner, before[key], after[key])
    elif _is_list(before) and _is_list(after):
        yield from _of_lists(path, before, after)
    elif _json(before) != _json(after):  # 1 and true are equal to Python
        yield ValueDifference(path, *_pair(*_texts(before, after)))


def _of_lists(path: str, before: Sequence[Any], after: Sequence[Any]) -> Iterator[ValueDifference]:
    old, new = Counter(map(_json, before)), Counter(map(_json, after))
    removed, added = list((old - new).elements()), list((new - old).elements())
    if not removed and not added:
        if _json(before) != _json(after):
            yield ValueDifference(f"{path} (the order)", *_pair(_json(before), _json(after)))
        return
    if len(before) == len(after) == 1:
        # One block of Terraform: its attributes are clearer than the whole.
        yield from differences(f"{path}[0]", before[0], after[0])
        return
    show = _shown(path.rpartition(".")[2], [*removed, *added])
    yield from (ValueDifference(path, show(each), None, element=True) for each in removed)
    yield from (ValueDifference(path, None, show(each), element=True) for each in added)


def _shown(name: str, elements: Sequence[str]) -> Callable[[str], str]:
    """The shortest way to write these elements, given as JSON, in which no two of them look the same."""
    different = set(elements)
    ways: tuple[Callable[[str], str], ...] = (
        lambda each: _rule(name, json.loads(each)) or _short(json.loads(each)),
        lambda each: _short(json.loads(each)),
        _cut,
    )
    return next((way for way in ways if len({way(each) for each in different}) == len(different)), printable)


def _rule(name: str, element: Any) -> str | None:
    """A rule of a security list in plain words; None: not a rule."""
    if name not in _DIRECTIONS or not isinstance(element, Mapping):
        return None
    direction, word, end = _DIRECTIONS[name]
    options = [element.get(key) or [] for key in ("tcp_options", "udp_options", "icmp_options")]
    if not all(_is_list(each) and all(isinstance(one, Mapping) for one in each) for each in options):
        return None
    protocol = str(element.get("protocol"))
    parts = [direction, _PROTOCOLS.get(protocol, f"protocol {protocol}")]
    for ports in (*options[0], *options[1]):
        low, high = (ports.get(key) for key in ("min", "max"))
        parts.append(str(low) if low == high else f"{low}-{high}")
        parts += ["with source ports", _json(ports.get("source_port_range"))] * bool(ports.get("source_port_range"))
    parts += [f"type {each.get('type')} code {each.get('code')}" for each in options[2]]
    parts += [word, str(element.get(end))]
    parts += ["stateless"] * bool(element.get("stateless"))
    parts += [f"({element['description']})"] * bool(element.get("description"))
    return _cut(" ".join(parts))


def _short(element: Any) -> str:
    """Without what is empty."""
    if isinstance(element, Mapping):
        element = {key: value for key, value in element.items() if value not in (None, "", [], {})}
    return _cut(_json(element))


def _texts(before: Any, after: Any) -> tuple[str, str]:
    """Both as text. Where a text could be taken for another value, or for one that looks the same, it is in quotes."""
    if isinstance(before, str) and isinstance(after, str):
        texts = before, after
        if all(_is_plain(text) for text in texts):
            return texts
        shown = printable(_json(before)), printable(_json(after))
        looks = [unicodedata.normalize("NFKC", text).casefold() for text in shown]
        return shown if looks[0] != looks[1] else (json.dumps(before), json.dumps(after))
    return _word(before), _word(after)


def _word(value: Any) -> str:
    """As JSON, but for the words that stand in the place of a value."""
    return value if value in (SENSITIVE, UNKNOWN, CHANGED) else _json(value)


def _is_plain(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and text == " ".join(text.split())


def _pair(before: str, after: str) -> tuple[str, str]:
    """Two texts; of long ones the part in which they differ."""
    before, after = printable(before), printable(after)
    if max(len(before), len(after)) <= _WIDTH:
        return before, after
    equal = _equal(before, after)
    least = min(len(before), len(after)) - equal
    behind = min(_equal(before[::-1], after[::-1]), least)
    start = max(equal - _BESIDE, 0)
    shown = []
    for text in (before, after):
        end = min(len(text) - behind + _BESIDE, len(text))
        shown.append(("..." if start else "") + _cut(text[start:end]) + ("..." if end < len(text) else ""))
    return shown[0], shown[1]


def _equal(one: str, other: str) -> int:
    """The number of characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str) -> str:
    text = printable(text)
    if len(text) <= _WIDTH:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{text[:_WIDTH]}... ({len(text)} characters, SHA-256 {digest})"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
