"""Numbers with their nouns."""

from __future__ import annotations

from gpucluster.text import count


def test_a_number_and_its_noun_agree() -> None:
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [count(number, "entry", "entries") for number in (1, 3)] == ["1 entry", "3 entries"]
