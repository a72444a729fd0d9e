"""The value of the tag that names the run that holds a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpucluster.oci import tags
from gpucluster.oci.run_lock import Holder, holder

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HELD = Holder("0a1b2c3d", NOW.isoformat(), "apply", "ada@build-3:/srv/my clusters/demo")


def test_what_is_written_is_read_again() -> None:
    assert holder({tags.LOCK: HELD.text()}) == HELD
    assert holder({}) is None
    assert holder(None) is None
    assert Holder("1", "2", "state recover", "x").text() == "1 2 state-recover x"


def test_a_long_origin_is_cut_and_still_the_same_place() -> None:
    long = Holder("0a1b2c3d", NOW.isoformat(), "apply", f"ada@build-3:/{'x' * 300}")
    read = holder({tags.LOCK: long.text()})
    assert read is not None
    assert len(long.text()) == 256
    assert read.same_place(long)
    assert not read.same_place(HELD)
    assert not Holder("0a1b2c3d", "", "", "").same_place(HELD)


@pytest.mark.parametrize("text", ["x", "x yesterday", "x yesterday apply", "  x  ", "x 2026-01-02T03:04:05 apply me"])
def test_any_text_is_a_lock(text: str) -> None:
    found = holder({tags.LOCK: text})
    assert found is not None
    assert (found.id, found.age(NOW)) == ("x", -1.0)


def test_an_age_is_never_negative() -> None:
    assert HELD.age(NOW + timedelta(minutes=12)) == 720
    assert HELD.age(NOW - timedelta(minutes=12)) == 0
