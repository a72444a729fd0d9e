"""Names of pool members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.cloud.members import numbered_names

DESIRED = ("compute-1", "compute-2", "compute-3")


def test_new_members_get_the_first_free_names() -> None:
    assert numbered_names("compute", {"a": "inst-x-compute", "b": "compute-2", "c": "inst-y-compute"}, DESIRED) == {
        "a": "compute-1",
        "b": "compute-2",
        "c": "compute-3",
    }


def test_a_removed_name_is_not_given_again() -> None:
    desired = ("compute-2", "compute-4")
    assert numbered_names("compute", {"a": "inst-x", "b": "compute-2"}, desired) == {"a": "compute-4", "b": "compute-2"}


def test_a_member_whose_name_is_not_desired_has_no_place_and_keeps_its_name() -> None:
    standing = {"a": "compute-1", "b": "compute-2", "c": "compute-3"}
    assert numbered_names("compute", standing, ("compute-2", "compute-3", "compute-4")) == {
        "b": "compute-2",
        "c": "compute-3",
    }


def test_more_members_than_names() -> None:
    assert numbered_names("compute", {"a": "x", "b": "y"}, ("compute-1",)) == {"a": "compute-1"}
    assert numbered_names("compute", {"a": "x"}, ()) == {}


def test_a_name_that_two_carry_stays_with_one() -> None:
    assert numbered_names("compute", {"a": "compute-1", "b": "compute-1"}, DESIRED) == {
        "a": "compute-1",
        "b": "compute-2",
    }


def test_another_pools_names_are_not_ours() -> None:
    assert numbered_names("compute", {"a": "compute2-1"}, DESIRED) == {"a": "compute-1"}


@given(
    st.dictionaries(st.text("abc", min_size=1), st.sampled_from(["compute-1", "compute-2", "compute-7", "x", ""])),
    st.lists(st.sampled_from([f"compute-{number}" for number in range(1, 9)]), unique=True),
)
def test_names_are_unique_desired_and_stable(names: dict[str, str], desired: list[str]) -> None:
    first = numbered_names("compute", names, desired)
    assert set(first) <= set(names)
    assert len(set(first.values())) == len(first)
    assert set(first.values()) <= set(desired)
    assert {name for name in names.values() if name in desired} <= set(first.values())
    assert numbered_names("compute", {**names, **first}, desired) == first
