"""The first cluster.yml: a name from the folder, and a range that is free."""

from __future__ import annotations

from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.spec import free_network, loads, name_of_folder, template


@given(st.text(max_size=40))
def test_any_folder_gives_a_name_that_validates(folder: str) -> None:
    assert loads(template(name=name_of_folder(folder)), "cluster.yml").name == name_of_folder(folder)


def test_what_is_a_name_already_stays() -> None:
    for name in ("demo", "a", "lab-2", "a23456789012345"):
        assert name_of_folder(name) == name


@given(
    st.lists(st.integers(0, 255).flatmap(lambda second: st.sampled_from([f"10.{second}.0.0/16", f"10.{second}.7.9"])))
)
def test_a_free_range_overlaps_nothing_and_the_template_takes_it(used: list[str]) -> None:
    free = free_network([*used, "default", "fe80::/64"])
    assert free is not None
    assert not any(IPv4Network(free).overlaps(IPv4Network(each)) for each in used)
    assert loads(template(network=free), "cluster.yml").network.vcn_cidr == free


def test_without_a_free_range_there_is_none() -> None:
    assert free_network(["10.0.0.0/8"]) is None
