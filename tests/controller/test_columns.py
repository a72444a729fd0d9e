"""The width of text on a terminal."""

from __future__ import annotations

import pytest

from gpucluster.controller.columns import columns, padded


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("alice", 5),
        ("山田 太郎", 9),
        ("ﾔﾏﾀﾞ", 4),  # half-width
        ("\uff21", 2),  # full-width
        ("か\u3099く", 4),  # a mark of its own over the first one
        ("Zoe\u0308", 3),
    ],
)
def test_characters_of_japanese_take_two_columns(text: str, width: int) -> None:
    assert columns(text) == width


def test_padding_counts_columns() -> None:
    assert padded("山田", 6) == "山田  "
    assert padded("山田", 3) == "山田"
