"""Reads a page as a browser does, as far as the tests need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page:
    """The elements of a page in their order, and what is wrong with it."""

    elements: list[Element] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        return [each for each in self.elements if each.tag == tag]

    @property
    def text(self) -> str:
        return " ".join(each.text for each in self.elements if each.tag != "style")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page, self.open = Page(), list[Element]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.page.faults.append(f"an attribute twice in {tag}: {names}")
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.page.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1].tag != tag:
            self.page.faults.append(f"</{tag}> closes {self.open[-1].tag if self.open else 'nothing'}")
            return
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def read(html: str) -> Page:
    """The elements of a page or of a part of one. Faults: what a strict reader does not accept."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    page = reader.page
    page.faults += [f"not closed: {each.tag}" for each in reader.open]
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    page.faults += [f"an id twice: {each}" for each in set(ids) if ids.count(each) > 1]
    page.faults += [
        f"leads to nothing: {each.attributes['href']}"
        for each in page.all("a")
        if each.attributes["href"].removeprefix("#") not in ids
    ]
    levels = [int(each.tag[1]) for each in page.elements if each.tag in {"h1", "h2", "h3", "h4"}]
    page.faults += [f"h{after} below h{before}" for before, after in pairwise(levels) if after > before + 1]
    for each in page.elements:
        page.faults += [f"{each.tag} has {name}" for name in each.attributes if name.startswith("on") or name == "src"]
        page.faults += [f"{each.tag} in a page" for _ in [0] if each.tag in {"script", "iframe", "object", "link"}]
        if each.attributes.get("role") in {"img", "region"} and not (
            each.attributes.get("aria-label") or each.tag == "svg"
        ):
            page.faults.append(f"{each.tag} has no name")
    return page


def drawings(html: str) -> list[ElementTree.Element]:
    """Every drawing, read as XML: what is not well-formed raises."""
    found = []
    rest = html
    while "<svg" in rest:
        start = rest.index("<svg")
        depth, at = 0, start
        while True:
            opened, closed = rest.find("<svg", at), rest.find("</svg>", at)
            if opened != -1 and opened < closed:
                depth, at = depth + 1, opened + 4
                continue
            depth, at = depth - 1, closed + 6
            if not depth:
                break
        found.append(ElementTree.fromstring(rest[start:at]))
        rest = rest[at:]
    return found
