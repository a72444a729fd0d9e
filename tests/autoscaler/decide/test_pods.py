"""Which pods get which elastic nodes: all of a gang or none, by priority and age, within the pools' limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.pods import (
    SETTLE,
    Member,
    NodeRequirement,
    NodeTemplate,
    Placed,
    Placement,
    Pod,
    Taint,
    Toleration,
    place,
)
from gpucluster.slurm.states import JobState

GPU = Taint("nvidia.com/gpu", "present")
TOLERATES = (Toleration("nvidia.com/gpu", exists=True),)
GPUS = NodeTemplate(
    "gpu", tuple(f"gpu-e{n}" for n in range(1, 9)), 3, {"cpu": 64.0, "pods": 110.0, "nvidia.com/gpu": 8.0}, 300.0,
    {"gpucluster.io/pool": "gpu", "gpus": "8"}, (GPU,),
)  # fmt: skip
CPUS = NodeTemplate("cpu", ("cpu-e1", "cpu-e2", "cpu-e3"), 2, {"cpu": 8.0, "pods": 110.0}, 300.0)


def pod(name: str, **kwargs: Any) -> Pod:
    defaults: dict[str, Any] = {
        "gang": name, "gang_size": 1, "node": "", "unschedulable": True, "created_at": 100.0,
        "needs": {"cpu": 1.0, "pods": 1.0},
    }  # fmt: skip
    return Pod(name, **{**defaults, **kwargs})


def gpu_pods(gang: str, number: int, gpus: float = 8.0, **kwargs: Any) -> list[Pod]:
    needs = {"cpu": 4.0, "pods": 1.0, "nvidia.com/gpu": gpus}
    common: dict[str, Any] = {"gang": gang, "gang_size": number, "needs": needs, "tolerations": TOLERATES, **kwargs}
    return [pod(f"{gang}-{rank}", **common) for rank in range(number)]


def put(pods: list[Pod], *members: Member, before: Placement | None = None, now: float = 1000.0) -> Placed:
    return place(pods, {each.name: each for each in members}, (CPUS, GPUS), before or Placement(), now)


def phases(placed: Placed, which: Phase) -> list[str]:
    return [name for name, node in placed.nodes.items() if phase(node.flags) is which]


def test_a_gang_gets_one_node_for_each_pod_that_fills_one() -> None:
    placed = put(gpu_pods("train", 2))
    assert placed.placement.given == {"train": ("gpu-e1", "gpu-e2")}
    assert phases(placed, Phase.POWERING_UP) == ["gpu-e1", "gpu-e2"]
    job = placed.jobs["train"]
    assert (job.state, job.nodes, job.partitions) == (JobState.CONFIGURING, ("gpu-e1", "gpu-e2"), ("gpu",))


def test_pods_share_a_node_where_they_fit() -> None:
    assert put(gpu_pods("small", 4, gpus=4.0)).placement.given == {"small": ("gpu-e1", "gpu-e2")}


def test_a_gang_that_is_larger_than_its_pool_gets_nothing_and_others_do() -> None:
    placed = put([*gpu_pods("large", 4, created_at=1.0), *gpu_pods("small", 1)])
    assert placed.placement.given == {"small": ("gpu-e1",)}
    assert (placed.jobs["large"].state, placed.jobs["large"].reason) == (JobState.PENDING, "Resources")
    assert placed.unfit == {"large": "its pods need 4 new nodes, and pool gpu may have 3"}


def test_a_gang_waits_until_all_of_its_pods_are_there() -> None:
    assert put(gpu_pods("train", 2)[:1]).placement.given == {}
    unsaid = [replace(each, gang_size=1) for each in gpu_pods("train", 2, created_at=998.0)]
    assert put(unsaid).placement.given == {}
    assert put(unsaid, now=1003.0).placement.given == {"train": ("gpu-e1", "gpu-e2")}


def test_a_pod_that_a_running_gang_lost_gets_a_node_though_others_have_ended() -> None:
    runs, lost = gpu_pods("train", 4)[:2]
    placed = put([replace(runs, node="gpu-e1"), lost], Member("gpu-e1", ready=True))
    assert placed.placement.given == {"train": ("gpu-e2",)}


def test_priority_comes_before_age_and_age_before_the_name() -> None:
    waiting = [*gpu_pods("a", 2, created_at=5.0), *gpu_pods("b", 2, created_at=4.0), *gpu_pods("c", 2, priority=9)]
    assert list(put(waiting).placement.given) == ["c"]
    assert list(put(waiting[:4]).placement.given) == ["b"]


def test_labels_taints_and_resources_decide_the_pool() -> None:
    assert put([pod("plain")]).placement.given == {"plain": ("cpu-e1",)}
    assert put([pod("there", selector={"gpucluster.io/pool": "gpu"}, tolerations=TOLERATES)]).placement.given == {
        "there": ("gpu-e1",)
    }
    refused = put([pod("nowhere", selector={"gpucluster.io/pool": "gpu"})])
    assert refused.placement.given == {}
    assert "no elastic pool has nodes" in refused.unfit["nowhere"]
    assert put([pod("big", needs={"cpu": 65.0})]).unfit.keys() == {"big"}


def asks(key: str, operator: str, *values: str) -> NodeRequirement:
    return NodeRequirement(key, operator, values)


@pytest.mark.parametrize(
    ("affinity", "fits"),
    [
        (((asks("gpucluster.io/pool", "In", "cpu", "gpu"),),), True),
        (((asks("gpucluster.io/pool", "In", "cpu"),),), False),
        (((asks("gpucluster.io/pool", "In", "cpu"),), (asks("gpucluster.io/pool", "Exists"),)), True),
        (((asks("gpucluster.io/pool", "Exists"), asks("zone", "Exists")),), False),
        (((asks("gpucluster.io/pool", "NotIn", "gpu"),),), False),
        (((asks("zone", "DoesNotExist"),),), True),
        (((asks("gpus", "Gt", "7"),),), True),
        (((asks("gpus", "Lt", "8"),),), False),
        (((asks("gpus", "Gt", "many"),),), False),
        (((asks("metadata.name", "field", "gpu-e1"),),), False),
        (((),), False),
    ],
)
def test_node_affinity_decides_as_the_scheduler_does(affinity: Any, fits: bool) -> None:
    one = pod("there", affinity=affinity, tolerations=TOLERATES, needs={"nvidia.com/gpu": 1.0})
    assert bool(put([one]).placement.given) is fits


def test_what_the_scheduler_has_not_refused_gets_nothing() -> None:
    assert put([pod("new", unschedulable=False)]).placement.given == {}
    assert put([pod("daemon", daemon=True)]).jobs == {}


def test_held_and_delayed_gangs_wait() -> None:
    placed = put([pod("held", held=True), pod("later", not_before=1001.0), pod("due", not_before=1000.0)])
    assert placed.placement.given == {"due": ("cpu-e1",)}
    assert {name: job.reason for name, job in placed.jobs.items()} == {
        "held": "JobHeldAdmin", "later": "BeginTime", "due": "None",
    }  # fmt: skip


def test_a_gang_that_is_not_admitted_yet_is_not_a_demand() -> None:
    """Kueue lets the pods of a group go one after the other."""
    one, two = gpu_pods("train", 2, unschedulable=False, gated=True)
    placed = put([one, two])
    assert (placed.placement.given, placed.unfit) == ({}, {})
    assert (placed.jobs["train"].state, placed.jobs["train"].reason) == (JobState.PENDING, "SchedulingGated")
    free = replace(one, unschedulable=True, gated=False)
    assert put([free, two]).placement.given == {}
    assert put([free, replace(two, unschedulable=True, gated=False)]).placement.given == {"train": ("gpu-e1", "gpu-e2")}


def test_a_gang_with_a_claim_that_nothing_binds_is_not_a_demand() -> None:
    one, two = gpu_pods("train", 2)
    placed = put([one, replace(two, unbound=True)])
    assert (placed.placement.given, placed.unfit) == ({}, {})
    assert (placed.jobs["train"].state, placed.jobs["train"].reason) == (JobState.PENDING, "UnboundClaim")
    assert put([one, two]).placement.given == {"train": ("gpu-e1", "gpu-e2")}


def test_a_node_that_takes_no_pods_any_more_is_not_a_node_for_those_that_wait_for_it() -> None:
    waiting = pod("first")
    before = put([waiting]).placement
    assert before.given == {"first": ("cpu-e1",)}
    failed = Member("cpu-e1", ready=True, cordoned=True, reason="gpucluster: check failed: mounts: gone", ours=True)
    placed = put([waiting], failed, before=before)
    assert placed.placement.given == {"first": ("cpu-e2",)}
    # Nothing keeps it from being given up.
    assert not placed.nodes["cpu-e1"].busy
    assert placed.nodes["cpu-e1"].drained


def test_nodes_that_come_are_kept_for_their_gang_until_its_pods_are_on_them() -> None:
    waiting = gpu_pods("train", 2)
    first = put(waiting).placement
    one_up = put(waiting, Member("gpu-e1", ready=True), before=first)
    assert one_up.placement.given == first.given
    assert phases(one_up, Phase.POWERING_UP) == ["gpu-e2"]
    assert "gpu-e1" not in one_up.placement.idle_since
    both = (Member("gpu-e1", ready=True), Member("gpu-e2", ready=True))
    up = put(waiting, *both, before=one_up.placement, now=1010.0)
    running = [replace(each, node=f"gpu-e{n}", unschedulable=False) for n, each in enumerate(waiting, 1)]
    runs = put(running, *both, before=up.placement, now=1011.0)
    assert (runs.placement.given, runs.placement.idle_since) == ({}, {})
    assert (runs.jobs["train"].state, runs.jobs["train"].nodes) == (JobState.RUNNING, ("gpu-e1", "gpu-e2"))


def test_nodes_that_do_not_help_are_not_followed_by_more() -> None:
    waiting = [pod("odd")]
    up = Member("cpu-e1", ready=True)
    placed = put(waiting, up, before=put(waiting).placement)
    late = put(waiting, up, before=placed.placement, now=1001.0 + SETTLE)
    assert (late.stuck, late.placement.given) == (("odd",), {})
    assert late.jobs["odd"].state == JobState.PENDING
    assert late.placement.stuck == {"odd": 1}
    assert put([], up, before=late.placement, now=2000.0).placement.stuck == {}


def test_a_node_that_the_scheduler_had_no_time_to_use_is_waited_for() -> None:
    """As after a lost placement: the node that came is not known to be the pod's."""
    up = Member("cpu-e1", ready=True)
    first = put([pod("one")], up)
    assert (first.placement.given, first.unfit) == ({}, {})
    two = put([pod("one"), pod("two", created_at=101.0)], up, before=first.placement)
    assert two.placement.given == {"two": ("cpu-e2",)}
    later = put([pod("one")], up, before=first.placement, now=1001.0 + SETTLE)
    assert later.placement.given == {"one": ("cpu-e2",)}
    assert put([pod("one")], replace(up, cordoned=True)).placement.given == {"one": ("cpu-e2",)}


def test_an_idle_node_goes_after_its_time_and_a_busy_one_never() -> None:
    members = (Member("cpu-e1", ready=True), Member("cpu-e2", ready=True))
    runs = [pod("job", node="cpu-e1"), pod("proxy", node="cpu-e2", daemon=True)]
    first = put(runs, *members)
    assert first.placement.idle_since == {"cpu-e2": 1000.0}
    assert put(runs, *members, before=first.placement, now=1299.0).idle == ()
    assert put(runs, *members, before=first.placement, now=1300.0).idle == ("cpu-e2",)
    ends = [*runs, pod("ends", node="cpu-e2", leaving=True)]
    assert put(ends, *members, before=first.placement, now=1300.0).idle == ()


def test_an_idle_node_that_an_operator_cordoned_stays() -> None:
    member = Member("cpu-e1", ready=True, cordoned=True)
    before = put([], member).placement
    assert put([], member, before=before, now=1300.0).idle == ()
    assert put([], replace(member, ours=True), before=before, now=1300.0).idle == ("cpu-e1",)


def test_a_node_that_was_given_up_powers_down_and_its_name_is_free_afterwards() -> None:
    waiting = gpu_pods("train", 2)
    lost = put(waiting).placement.without_nodes(["gpu-e2"], 1000.0)
    assert lost.given == {}
    again = put(waiting, before=lost)
    assert phases(again, Phase.POWERING_DOWN) == ["gpu-e2"]
    assert again.placement.given == {"train": ("gpu-e1", "gpu-e3")}
    assert phases(put([], before=again.placement, now=1020.0), Phase.POWERING_DOWN) == []


def test_names_whose_instances_may_still_terminate_are_used_last() -> None:
    gone = Placement().without_nodes(["cpu-e1"], 1000.0)
    assert put([pod("one")], before=gone, now=1900.0).placement.given == {"one": ("cpu-e2",)}
    both = gone.without_nodes(["cpu-e2", "cpu-e3"], 1100.0)
    assert put([pod("one")], before=both, now=1900.0).placement.given == {"one": ("cpu-e1",)}


def test_a_node_that_comes_back_after_it_was_given_up_is_not_a_node_for_pods() -> None:
    gone, back = Placement().without_nodes(["cpu-e1"], 1000.0), Member("cpu-e1", ready=True)
    placed = put([pod("one")], back, before=gone, now=1500.0)
    assert placed.back == ("cpu-e1",)
    assert phases(placed, Phase.POWERING_DOWN) == ["cpu-e1"]
    assert placed.placement.given == {"one": ("cpu-e2",)}
    used_again = put([pod("one", node="cpu-e2")], Member("cpu-e2", ready=True), before=placed.placement, now=1600.0)
    assert used_again.back == ()


def test_a_pool_that_is_closed_leaves_its_pods_to_another_until_it_is_open() -> None:
    other = replace(CPUS, pool="spare", names=("spare-e1",))
    closed = Placement().with_closed(CPUS.names, "gpucluster: no host")

    def given(before: Placement, now: float = 1000.0) -> Placed:
        return place([pod("one")], {}, (CPUS, other), before, now)

    first = given(closed)
    assert first.placement.given == {"one": ("spare-e1",)}
    assert phases(first, Phase.DOWN_POWERED_OFF) == list(CPUS.names)
    assert first.nodes["cpu-e1"].reason == "gpucluster: no host"
    opened = given(closed.without_nodes(CPUS.names, 1000.0), 1020.0)
    assert opened.placement.given == {"one": ("cpu-e1",)}


def test_the_limit_of_a_pool_counts_what_has_joined_and_what_is_on_its_way() -> None:
    busy = [pod("a", node="cpu-e1")]
    placed = put([*busy, pod("b", created_at=1.0), pod("c")], Member("cpu-e1", ready=True))
    assert placed.placement.given == {"b": ("cpu-e2",)}


def test_a_node_out_of_service_is_shown_so_with_its_reason() -> None:
    silent, down = Member("cpu-e1", ready=False), Member("cpu-e2", ready=False, down=True, reason="gpucluster: lost")
    placed = put([pod("job", node="cpu-e1")], silent, down, Member("cpu-e3", ready=True, cordoned=True))
    assert placed.nodes["cpu-e1"].silent
    assert (phase(placed.nodes["cpu-e2"].flags), placed.nodes["cpu-e2"].reason) == (Phase.DOWN, "gpucluster: lost")
    assert placed.nodes["cpu-e3"].drained
