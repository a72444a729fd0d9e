"""A part of a cluster: which pools, nodes and checks are in it, and what is wrong with a name."""

from __future__ import annotations

import dataclasses

import pytest

from gpucluster.errors import InputError
from gpucluster.verdict.expectation import narrowed
from tests.verdict.samples import FULL, HEAD, facts, verdict

TWO = dataclasses.replace(
    FULL,
    hosts=[HEAD, "demo-login-1", "compute-1", "compute-2", "big-1"],
    pools={"compute": ["compute-1", "compute-2"], "big": ["big-1"]},
)


@pytest.mark.parametrize(
    ("pools", "nodes", "left"),
    [
        (["big"], "", {"big": ["big-1"]}),
        (["big", "compute"], "", {"compute": ["compute-1", "compute-2"], "big": ["big-1"]}),
        ([], "compute-[1-2]", {"compute": ["compute-1", "compute-2"]}),
        ([], "compute-2,big-1", {"compute": ["compute-2"], "big": ["big-1"]}),
        (["compute"], "compute-2", {"compute": ["compute-2"]}),
    ],
)
def test_a_part_has_these_pools_and_nodes(pools: list[str], nodes: str, left: dict[str, list[str]]) -> None:
    part = narrowed(TWO, pools, nodes)
    assert part.pools == left
    assert list(part.hosts) == [node for listed in left.values() for node in listed]


def test_without_a_filter_it_is_the_whole_cluster() -> None:
    assert narrowed(TWO) is TWO


def test_a_part_has_no_result_of_the_controller_login_nodes_and_the_cluster() -> None:
    reported = facts(FULL)
    reported[HEAD]["firewall"] = reported["compute-1"]["firewall"] = {"state": "failed", "words": "no nft"}
    reported[HEAD]["accounting"] = False
    reported[HEAD]["srun"][0]["nodes"] = ["compute-2"]
    found = verdict(narrowed(FULL, nodes="compute-2"), reported)
    assert (found.status, dict(found.hosts)) == ("pass", {"compute-2": "pass"}), found.problems
    assert {result.scope for result in found.results} == {"host", "node", "pool"}
    assert verdict(narrowed(FULL, ["compute"]), reported).hosts == {"compute-1": "fail", "compute-2": "pass"}


@pytest.mark.parametrize(
    ("pools", "nodes", "message"),
    [
        (["comptue"], "", "there is no pool comptue. Did you mean compute"),
        (["x"], "", "there is no pool x. Pools: compute, big"),
        ([], "compute-3", "there is no node compute-3. Did you mean compute-"),
        ([], "compute-[1-3]", "there is no node compute-3"),
        ([], HEAD, f"there is no node {HEAD}"),
        ([], "compute-e1", "It is elastic. To try those that are up: gpucluster verify --pool compute"),
        ([], "compute-[1-", "not a list of hosts"),
        ([], "@all", "not a list of hosts"),
        ([], " ", "the list of nodes is empty"),
        (["big"], "compute-1", "compute-1 is not in pool big"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_and_the_nearest_is_named(
    pools: list[str], nodes: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        narrowed(TWO, pools, nodes)
    assert message in str(error.value)
