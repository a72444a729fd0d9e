"""What is not known is neither a pass nor a failure: for every check, whatever is missing.

A check that none of the sample clusters has fails here, so that a new one can't be forgotten.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Missing, Status, evaluate
from gpucluster.verdict.expectation import ClusterCheck, Expectation
from gpucluster.verdict.measurements import measured
from gpucluster.verdict.registry import CHECKS, CLUSTER_CHECKS
from tests.verdict.samples import CLAIMS, CLUSTER, ENGINE, FULL, KUBERNETES, MESH, Facts, facts, verdict

SAMPLES = {"slurm": CLUSTER, "mesh": MESH, "all": FULL, "kubernetes": KUBERNETES, "engine": ENGINE, "claims": CLAIMS}


def _sample(check: ClusterCheck) -> tuple[Expectation, Facts, str]:
    for cluster in (FULL, MESH, KUBERNETES, ENGINE, CLAIMS):
        if subjects := check.subjects(cluster):
            return cluster, facts(cluster), subjects[-1]
    raise AssertionError(f"no sample cluster has anything to check for {check.name}: add one to samples.py")


@pytest.mark.parametrize(
    ("check", "need"),
    [(check, need) for check in CLUSTER_CHECKS for need in check.needs],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_without_a_measurement_that_it_needs_a_check_is_unknown(check: ClusterCheck, need: str) -> None:
    cluster, reported, subject = _sample(check)
    seen = dict(measured(check, subject, cluster, reported))
    assert evaluate(check, subject, seen, cluster).status is Status.PASS
    for nothing in (None, Missing("the program gave no answer within 5 s")):
        found = evaluate(check, subject, {**seen, need: nothing}, cluster)
        assert found.status is Status.UNKNOWN
    assert found.message == "the program gave no answer within 5 s"
    # And as it comes from the hosts.
    for host in reported.values():
        host.pop(need, None)
        host.pop(need.removeprefix("all_"), None)
    found = evaluate(check, subject, measured(check, subject, cluster, reported), cluster)
    assert found.status is Status.UNKNOWN
    assert found.message


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_states_what_to_do_and_needs_something(name: str) -> None:
    check = CHECKS[name]
    assert check.name == name == name.lower()
    assert check.title
    assert check.remedy
    assert check.needs
    assert check.profiles
    assert check.timeout_s > 0


def test_no_two_checks_have_one_name() -> None:
    assert len(CHECKS) >= len(CLUSTER_CHECKS)
    assert len({check.name for check in CLUSTER_CHECKS}) == len(CLUSTER_CHECKS)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each member of each object, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _paths(inner, (*path, number))


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    spoiled = copy.deepcopy(value)
    place = spoiled
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return spoiled


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_part_of_a_measurement_that_is_missing_blames_no_node(sample: str) -> None:
    """Facts that are cut off at any place: no check fails, and one that could judge before is at most unknown."""
    cluster = SAMPLES[sample]
    paths = list(_paths(facts(cluster)))
    assert len(paths) > 40
    for path in paths:
        found = verdict(cluster, _without(facts(cluster), path))
        assert {result.status for result in found.results} <= {"pass", "unknown"}, (path, found.problems)


def _judged(cluster: Expectation, reported: Facts) -> list[tuple[str, str]]:
    """What the operator's side has judged, in order. A report that is not one has no results of its own."""
    ours = {check.name for check in CLUSTER_CHECKS}
    return [(each.check, each.subject) for each in verdict(cluster, reported).results if each.check in ours]


@pytest.mark.parametrize("strange", [[], {}, "", "x", 0, 1.5, True, [None], {"a": None}])
@pytest.mark.parametrize("sample", SAMPLES)
def test_facts_of_an_unknown_form_raise_nothing(sample: str, strange: Any) -> None:
    cluster = SAMPLES[sample]
    judged = _judged(cluster, facts(cluster))
    for host, reported in facts(cluster).items():
        for name in reported:
            spoiled = facts(cluster)
            spoiled[host][name] = strange
            assert _judged(cluster, spoiled) == judged
