"""The rounds of a run of chaos: reproducible, and each disturbance is among them."""

from __future__ import annotations

import pytest

from tests.chaos.chaos_site import CLUSTER_YML
from tests.chaos.disturbances import CHANGES, DISTURBANCES, exchanged, rounds


def test_a_seed_makes_the_same_rounds() -> None:
    assert rounds(30, "one") == rounds(30, "one")
    assert rounds(30, "one") != rounds(30, "two")
    assert rounds(30, "one")[:5] == rounds(5, "one")


def test_each_disturbance_comes_once_before_one_comes_again() -> None:
    made = rounds(len(DISTURBANCES) * 2, "one")
    first, second = made[: len(DISTURBANCES)], made[len(DISTURBANCES) :]
    names = {each.name for each in DISTURBANCES}
    assert {each.disturbance.name for each in first} == {each.disturbance.name for each in second} == names
    assert len(names) == len(DISTURBANCES)
    assert [each.number for each in made] == list(range(1, len(made) + 1))


def test_the_moment_is_one_of_the_commands_events() -> None:
    for each in rounds(200, "one"):
        assert 1 <= each.event(80) <= 80


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_file_is_made_forth_and_back(change: str) -> None:
    other = exchanged(CLUSTER_YML, change)
    assert other != CLUSTER_YML
    assert exchanged(other, change) == CLUSTER_YML


def test_a_file_without_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="has neither"):
        exchanged("version: 1\n", "image")


def test_each_change_that_a_disturbance_asks_for_exists() -> None:
    assert {each.change for each in DISTURBANCES} - {""} <= CHANGES.keys()
