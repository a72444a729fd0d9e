"""The colours of pages, for light and dark screens. Tests compute the contrast of each pair that meets."""

from __future__ import annotations

from enum import StrEnum


class Tone(StrEnum):
    """What a state means to its reader. Pages show it by a word, a form and a colour."""

    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"
    OFF = "off"


# name: (light, dark). Surfaces first, then what stands on them.
PALETTE: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#12161c"),
    "panel": ("#f4f6f8", "#1b2129"),
    "border": ("#d0d6dd", "#38424e"),
    "text": ("#1a1f26", "#e7ebf0"),
    "soft": ("#525c69", "#a3adba"),
    "link": ("#0b57c2", "#78b4ff"),
    "good": ("#176c36", "#56c47d"),
    "good-fill": ("#e1f4e7", "#14301f"),
    "busy": ("#0b57c2", "#78b4ff"),
    "busy-fill": ("#e3eefc", "#14294a"),
    "warn": ("#855300", "#e3ad3e"),
    "warn-fill": ("#fcf0d4", "#382a0c"),
    "bad": ("#b3202c", "#ff8680"),
    "bad-fill": ("#fde6e6", "#431a1c"),
    "unknown": ("#525c69", "#a3adba"),
    "unknown-fill": ("#e9ecf0", "#2a323c"),
    "off": ("#525c69", "#a3adba"),
    "off-fill": ("#f4f6f8", "#1b2129"),
    "line-1": ("#0b62b8", "#5fadf5"),
    "line-2": ("#b44a00", "#f29150"),
    "line-3": ("#00774f", "#3fc491"),
    "line-4": ("#9a2d87", "#e487d0"),
    "line-5": ("#7d6400", "#d8b93c"),
    "line-6": ("#007a94", "#48c8df"),
    "line-7": ("#6647cc", "#ab9df7"),
    "line-8": ("#525c69", "#b6bfca"),
    # From little to much: on both kinds of screen, more stands out more.
    "heat-0": ("#e4edf6", "#20303f"),
    "heat-1": ("#b5d0ea", "#2b4d6d"),
    "heat-2": ("#79abd9", "#3a75a9"),
    "heat-3": ("#3a7dbd", "#65a6dd"),
    "heat-4": ("#0f4c85", "#bcdcf7"),
}
LINES = sum(name.startswith("line-") for name in PALETTE)
HEAT_LEVELS = sum(name.startswith("heat-") for name in PALETTE)


def variables(*, dark: bool) -> str:
    """The colours as CSS properties."""
    return "".join(f"--{name}:{pair[dark]};" for name, pair in PALETTE.items())
