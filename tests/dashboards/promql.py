"""The names of series in an expression of PromQL."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_LABELS_OF = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


def names(expr: str) -> set[str]:
    """Every name; of `{__name__=~"..."}` those of its alternatives."""
    found = set()
    for pattern in re.findall(r'__name__=~"([^"]*)"', expr):
        head, _, rest = pattern.partition("(")
        found |= {head + each for each in rest.rstrip(")").split("|")}
    text = _STRING.sub('""', expr)
    text = re.sub(r"\{[^{}]*\}", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = _LABELS_OF.sub("", text)
    for word in _WORD.finditer(text):
        before = text[: word.start()]
        is_function = text[word.end() :].lstrip().startswith("(")
        is_number = before[-1:].isdigit() or before[-1:] == "."
        if not is_function and not is_number and word[0] not in _KEYWORDS and word[0] not in ("by", "without"):
            found.add(word[0])
    return found
