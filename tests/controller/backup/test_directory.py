"""The database of the directory and the one that takes its place, also where a restore is killed between the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import directory
from tests.controller.backup.contents import content
from tests.controller.users.harness import SUFFIX


def test_the_new_database_takes_the_place_of_the_old(place: Any) -> None:
    place.exchange()
    assert (content(place), (place.aside / "data.mdb").read_text()) == ("new", "old")
    assert not place.recover()
    assert content(place) == "new"


@pytest.mark.parametrize("made_again", [True, False])
def test_a_kill_between_two_names_is_healed(place: Any, made_again: bool) -> None:
    place.data.rename(place.aside)
    if made_again:  # by the role, empty
        place.data.mkdir()
    assert place.recover()
    assert content(place) == "old"
    assert not place.recover()


def test_an_empty_directory_of_a_new_controller_is_left_alone(tmp_path: Path) -> None:
    assert not directory.Directory(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody").recover()
