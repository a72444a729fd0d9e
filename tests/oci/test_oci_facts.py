"""Tags, names, lifecycle states and refusals of OCI."""

from __future__ import annotations

import pytest

from gpucluster.oci import names, tags
from gpucluster.oci.states import ENDING, INSTANCE, LIVE, STOPPED


def test_tags_of_an_elastic_node() -> None:
    made = tags.for_elastic_node("lab", "gpu", "gpu-e1", 3)
    assert made == {"gpucluster": "lab", "pool": "gpu", "node": "gpu-e1", "generation": "3"}
    assert set(made) <= set(tags.RESERVED)
    assert tags.elastic_node(made, "lab") == "gpu-e1"
    assert tags.elastic_node(made, "other") == ""
    assert tags.elastic_node(None, "lab") == ""
    assert tags.elastic_node({"gpucluster": "lab"}, "lab") == ""
    assert tags.generation(made) == 3
    assert tags.generation({"generation": "x"}) == tags.generation(None) == 0


def test_what_may_be_ended_without_terraform() -> None:
    assert tags.elastic_or_builder({"gpucluster": "lab", "node": "gpu-e1"}, "lab")
    assert tags.elastic_or_builder({"gpucluster": "lab", "builder": "gpu"}, "lab")
    assert not tags.elastic_or_builder({"gpucluster": "lab"}, "lab")
    assert not tags.elastic_or_builder({"gpucluster": "other", "node": "gpu-e1"}, "lab")
    assert not tags.elastic_or_builder(None, "lab")


@pytest.mark.parametrize(
    ("tagged", "own", "ours"),
    [
        ("ab12", "ab12", True),
        ("cd34", "ab12", False),
        ("", "ab12", True),  # with ten tags already
        ("cd34", "", True),  # a cluster that does not know its identity goes by the name
    ],
)
def test_of_two_clusters_of_one_name_each_has_its_own(tagged: str, own: str, ours: bool) -> None:
    found = {"gpucluster": "lab", "node": "gpu-e1", **({"gpucluster-id": tagged} if tagged else {})}
    assert tags.of_cluster(found, "lab", own) is ours
    assert bool(tags.elastic_node(found, "lab", own)) is ours
    assert tags.elastic_or_builder(found, "lab", own) is ours
    assert not tags.of_cluster(found, "other", own)


@pytest.mark.parametrize(
    ("name", "number"),
    [("gpu-e1", 1), ("gpu-e120", 120), ("gpu-e0", 0), ("gpu-e01", 0), ("gpu-e", 0), ("gpu-1", 0), ("gpu-e1a", 0)],
)
def test_numbers_of_elastic_nodes(name: str, number: int) -> None:
    assert names.number_of(names.elastic_prefix("gpu"), name) == number


def test_names() -> None:
    assert names.elastic_name_count(0) == 0
    assert names.elastic_name_count(4) == 10
    assert names.number_of(names.elastic_prefix("gpu"), names.builder_name("gpu")) == 0


def test_each_lifecycle_state_is_live_or_ending() -> None:
    assert set(INSTANCE) == LIVE | ENDING
    assert not LIVE & ENDING
    assert STOPPED < LIVE
