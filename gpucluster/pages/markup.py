"""Elements of HTML and SVG, with every text escaped, and the templates' environment."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from gpucluster.text import printable

# Characters of a text that are shown. Longer ones are made-up names: they would fill the page.
_LONGEST = 2000
# Attributes of SVG that have capitals.
_CAPITALS = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
# Elements that have neither content nor an end tag.
_VOID = frozenset({"br", "hr", "line", "link", "meta", "path", "rect", "circle"})


def plain(value: object) -> Markup:
    """A text as it may stand in a page: escaped, on one line, without characters that hide others. Markup stays."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return escape(printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """One element.

    Args:
        content: texts, which are escaped, or elements.
        attributes: `_` becomes `-`, and `class_` is `class`. None and False leave it out, True has no value.
    """
    written = Markup("").join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup("<") + tag + written + Markup("/>")
    return Markup("<") + tag + written + Markup(">") + joined(content) + Markup("</") + tag + Markup(">")


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Texts and elements in a row."""
    return plain(between).join(plain(part) for part in parts)


def _attribute(name: str, value: object) -> Markup:
    if value is None or value is False:
        return Markup("")
    key = plain(_CAPITALS.get(name) or name.rstrip("_").replace("_", "-"))
    if value is True:
        return " " + key
    # The path of a drawing is numbers, and as long as it is.
    return " " + key + Markup('="') + (escape(value) if key == "d" else plain(value)) + Markup('"')


@cache
def templates(package: str) -> Environment:
    """The environment of the templates in a package. What one prints is escaped; a missing name is an error."""
    return Environment(
        loader=FunctionLoader(lambda name: _source(package, name)),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(package: str, name: str) -> str | None:
    file = resources.files(package) / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _printed(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value
