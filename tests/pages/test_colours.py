"""Contrast after WCAG 2.2 (1.4.3 and 1.4.11): 4.5 for text, 3 for what is drawn."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import gpucluster.pages
from gpucluster.pages.colours import HEAT_LEVELS, LINES, PALETTE, Tone

TEXT, DRAWN = 4.5, 3.0
SURFACES = ("page", "panel")
PAIRS = [
    *((name, surface, TEXT) for name in ("text", "soft", "link") for surface in SURFACES),
    *((tone, f"{tone}-fill", TEXT) for tone in Tone),
    *((tone, "page", TEXT) for tone in Tone),
    # Commands in a notice have a panel of their own; soft text may stand in a notice.
    *(("text", f"{tone}-fill", TEXT) for tone in Tone),
    *((f"line-{number}", "page", DRAWN) for number in range(1, LINES + 1)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_ratio_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("front", "back", "least"), PAIRS)
@pytest.mark.parametrize("dark", [False, True])
def test_what_stands_on_another_colour_can_be_seen(front: str, back: str, least: float, dark: bool) -> None:
    assert contrast(PALETTE[front][dark], PALETTE[back][dark]) >= least


@pytest.mark.parametrize("dark", [False, True])
def test_more_heat_differs_more_from_the_page(dark: bool) -> None:
    page = PALETTE["page"][dark]
    ratios = [contrast(PALETTE[f"heat-{level}"][dark], page) for level in range(HEAT_LEVELS)]
    assert all(after / before > 1.2 for before, after in pairwise(ratios)), ratios
    assert ratios[0] > 1.1


def test_every_colour_is_in_a_pair() -> None:
    used = {name for front, back, _ in PAIRS for name in (front, back)}
    assert {name for name in PALETTE if not name.startswith("heat-")} - used == {"border"}


def test_the_style_uses_colours_of_the_palette_only() -> None:
    css = (Path(gpucluster.pages.__file__).parent / "page.css").read_text()
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", css)) <= set(PALETTE)
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", css)
    assert "url(" not in css
    assert "@import" not in css
