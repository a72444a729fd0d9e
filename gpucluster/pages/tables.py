"""Tables, badges of states, and grids of many small things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gpucluster.pages.colours import Tone
from gpucluster.pages.markup import element, joined

# A badge's form, by what it means: it still shows that without its colour.
_FORMS = {
    Tone.GOOD: "✓",
    Tone.BUSY: "▸",
    Tone.WARN: "!",
    Tone.BAD: "✕",
    Tone.UNKNOWN: "?",
    Tone.OFF: "—",
}

# A name of so many characters leaves room for the next column on a phone.
_SHORT_NAME = 16


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: its heading.
        number: it has numbers, which stand at the right.
        long: it has sentences: it is wide enough to read them, also where the table is wider than the screen.
    """

    name: str
    number: bool = False
    long: bool = False


@dataclass(frozen=True)
class Cell:
    """One thing of a grid.

    Args:
        mark: one or two characters for its state, the same for all of that state.
        title: what it is, in words.
    """

    mark: str
    tone: Tone
    title: str


def badge(text: str, tone: Tone) -> Markup:
    """A state as a word, with a sign and a colour."""
    return element(
        "span", element("span", _FORMS[tone], aria_hidden="true", class_="sign"), text, class_=f"badge {tone}"
    )


def table(
    title: str,
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "None.",
    most: int | None = None,
    more: str = "",
) -> Markup:
    """A table that scrolls inside of its own box. The first cell of a row is its heading.

    Args:
        title: what it lists, for those who hear the page.
        rows: texts or elements; None is an empty cell.
        empty: the text without rows.
        most: so many rows at most; what is left out is counted.
        more: where the rows that are left out can be seen.
    """
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    listed = list(rows)
    if not listed:
        return element("p", empty, class_="nothing")
    shown = listed if most is None else listed[:most]
    body = [
        element(
            "tr",
            *(_cell(value, head, first=index == 0) for index, (head, value) in enumerate(zip(heads, row, strict=True))),
        )
        for row in shown
    ]
    head = element("tr", *(element("th", each.name, scope="col", class_=_class(each)) for each in heads))
    drawn = element(
        "table", element("caption", title, class_="unseen"), element("thead", head), element("tbody", *body)
    )
    box = element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=title)
    left_out = len(listed) - len(shown)
    if not left_out:
        return box
    return box + element("p", " ".join(filter(None, [f"{left_out} more are not shown.", more])), class_="key")


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Names with their values. What is empty is left out."""
    rows = [
        element("div", element("dt", name), element("dd", value)) for name, value in pairs if value not in (None, "")
    ]
    return element("dl", *rows, class_="facts") if rows else Markup("")


def figures(pairs: Iterable[tuple[str, object]]) -> Markup:
    """The few facts that matter most, large: they are read first, and from some distance."""
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *rows, class_="figures") if rows else Markup("")


def grid(title: str, cells: Sequence[Cell], legend: Sequence[tuple[str, Tone, str]]) -> Markup:
    """Many things in little space: one small field each, with a mark for its state.

    Args:
        legend: each mark with its tone and its meaning.
    """
    fields = [element("i", cell.mark, title=cell.title, class_=cell.tone) for cell in cells]
    keys = [element("span", element("i", mark, class_=tone), f" {meaning}") for mark, tone, meaning in legend]
    drawn = element("div", *fields, class_="grid", role="img", aria_label=title)
    return drawn + element("p", *keys, class_="key grid-key")


def notice(text: object, tone: Tone = Tone.UNKNOWN) -> Markup:
    """A sentence that stands out: what is missing, and how to get it."""
    return element("p", element("span", _FORMS[tone], aria_hidden="true", class_="sign"), text, class_=f"notice {tone}")


def listing(items: Iterable[object]) -> Markup:
    """A list of sentences."""
    rows = [element("li", item) for item in items]
    return element("ul", *rows) if rows else Markup("")


def code(text: str) -> Markup:
    """A command, or another text that is copied as it is."""
    return element("code", text)


def words(*parts: object) -> Markup:
    """Texts and elements in one sentence, with a space between them."""
    return joined((part for part in parts if part not in (None, "")), " ")


def _cell(value: object, head: Column, *, first: bool) -> Markup:
    shown = "" if value is None else value
    # A browser may break a name at its hyphen; on a narrow screen it does.
    short = "short" if isinstance(shown, str) and len(shown) <= _SHORT_NAME else None
    return element("th", shown, scope="row", class_=short) if first else element("td", shown, class_=_class(head))


def _class(head: Column) -> str | None:
    return "number" if head.number else "long" if head.long else None
