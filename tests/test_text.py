"""Numbers with their nouns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.text import count, printable


def test_a_number_and_its_noun_agree() -> None:
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [count(number, "entry", "entries") for number in (1, 3)] == ["1 entry", "3 entries"]


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_printed_moves_no_cursor(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    said.encode()  # no half of a surrogate pair is left
    if text.isprintable():
        assert said == text
