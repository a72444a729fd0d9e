"""Numbers with their nouns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.text import count, printable, some


def test_a_number_and_its_noun_agree() -> None:
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [count(number, "entry", "entries") for number in (1, 3)] == ["1 entry", "3 entries"]


def test_of_many_names_the_first_are_shown() -> None:
    assert some(["a", "b", "c", "d"]) == "a, b, c, d"
    assert some(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert some(["a", "b"], most=1) == "a and 1 more"
    assert some([]) == ""


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_printed_moves_no_cursor(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    said.encode()  # no half of a surrogate pair is left
    if text.isprintable():
        assert said == text
