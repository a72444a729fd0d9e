import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from gpucluster.pages.colours import PALETTE, Tone
from gpucluster.pages.frame import Section, is_page, page
from gpucluster.pages.markup import element, joined, templates
from gpucluster.pages.tables import Cell, Column, badge, facts, grid, notice, table
from tests.pages.reading import read


def made(*sections: Section, title: str = "Cluster demo", kind: str = "overview", **more: str) -> str:
    return page(title, sections, kind=kind, made_at=1764072000, made_by="gpucluster 1.2", **more)


def test_a_page_is_sound_and_states_when_it_was_made() -> None:
    html = made(Section("nodes", "Nodes", table("Nodes", ["Node"], [["gpu-1"]])), Section("jobs", "Jobs", Markup("")))
    found = read(html)
    assert found.faults == []
    assert [each.text for each in found.all("h2")] == ["Nodes", "Jobs"]
    assert "Made 2025-11-25 12:00:00 UTC by gpucluster 1.2" in found.text
    assert found.all("html")[0].attributes == {"lang": "en"}


def test_a_page_needs_nothing_from_elsewhere_and_may_load_nothing() -> None:
    html = made(Section("a", "A", Markup("")))
    (policy,) = [
        each.attributes["content"]
        for each in read(html).all("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img|javascript:", html)


def test_a_page_has_its_colours_for_both_kinds_of_screen() -> None:
    html = made()
    light, dark = html.split("@media screen and (prefers-color-scheme:dark)")
    for name, (on_light, on_dark) in PALETTE.items():
        assert f"--{name}:{on_light};" in light
        assert f"--{name}:{on_dark};" in dark


def test_a_page_knows_its_own_kind() -> None:
    html = made(kind="overview")
    assert is_page(html, "overview")
    assert not is_page(html, "job-report")
    assert not is_page("<html>my own notes</html>", "overview")
    named = made(kind="job-report", title='<meta name="gpucluster-page" content="overview">')
    assert not is_page(named, "overview")


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_every_text_is_only_text(one: str, other: str) -> None:
    body = table(one, [one, Column(other, number=True)], [[one, other], [badge(other, Tone.BAD), None]])
    body += facts([(one, other)]) + notice(one) + grid(one, [Cell(one, Tone.OFF, other)], [(one, Tone.OFF, other)])
    html = made(Section("a", one, body), title=other, subtitle=one)
    assert read(html).faults == []
    html.encode()


def test_a_text_of_a_megabyte_does_not_fill_the_page() -> None:
    assert len(element("p", "x" * 1_000_000)) < 3000


def test_a_template_with_an_unknown_name_fails() -> None:
    with pytest.raises(UndefinedError):
        templates("gpucluster.pages").from_string("{{ nothing }}").render()


def test_elements_are_escaped_once() -> None:
    assert element("p", element("b", "<"), "&", class_="a b", hidden=True, id=None) == (
        '<p class="a b" hidden><b>&lt;</b>&amp;</p>'
    )
    assert joined(["a", "<"], ", ") == "a, &lt;"
