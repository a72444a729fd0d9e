"""Names of pool members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.instances import numbered_names


def test_new_members_get_the_lowest_free_numbers() -> None:
    assert numbered_names("compute", {"a": "inst-x-compute", "b": "compute-2", "c": "inst-y-compute"}) == {
        "a": "compute-1",
        "b": "compute-2",
        "c": "compute-3",
    }


def test_a_name_that_two_carry_stays_with_one() -> None:
    assert numbered_names("compute", {"a": "compute-1", "b": "compute-1"}) == {"a": "compute-1", "b": "compute-2"}


def test_another_pools_names_are_not_ours() -> None:
    assert numbered_names("compute", {"a": "compute2-1"}) == {"a": "compute-1"}


@given(st.dictionaries(st.text("abc", min_size=1), st.sampled_from(["compute-1", "compute-2", "compute-7", "x", ""])))
def test_names_are_unique_and_stable(names: dict[str, str]) -> None:
    first = numbered_names("compute", names)
    assert set(first) == set(names)
    assert len(set(first.values())) == len(names)
    assert numbered_names("compute", first) == first
