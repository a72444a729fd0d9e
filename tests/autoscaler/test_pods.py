"""Which pods get which elastic nodes: all of a gang or none, by priority and age, within the pools' limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.pods import SETTLE, Member, Placed, Placement, Pod, Taint, Template, Toleration, place
from gpucluster.slurm.states import JobState

GPU = Taint("nvidia.com/gpu", "present")
TOLERATES = (Toleration("nvidia.com/gpu", exists=True),)
GPUS = Template(
    "gpu", tuple(f"gpu-e{n}" for n in range(1, 9)), 3, {"cpu": 64.0, "pods": 110.0, "nvidia.com/gpu": 8.0},
    {"gpucluster.io/pool": "gpu"}, (GPU,),
)  # fmt: skip
CPUS = Template("cpu", ("cpu-e1", "cpu-e2", "cpu-e3"), 2, {"cpu": 8.0, "pods": 110.0})


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
    return place(pods, {each.name: each for each in members}, (CPUS, GPUS), before or Placement(), now, 300.0)


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
    assert placed.unfit == {}


def test_a_gang_waits_until_all_of_its_pods_are_there() -> None:
    assert put(gpu_pods("train", 2)[:1]).placement.given == {}


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


def test_what_the_scheduler_has_not_refused_gets_nothing() -> None:
    assert put([pod("new", unschedulable=False)]).placement.given == {}
    assert put([pod("daemon", daemon=True)]).jobs == {}


def test_held_and_delayed_gangs_wait() -> None:
    placed = put([pod("held", held=True), pod("later", not_before=1001.0), pod("due", not_before=1000.0)])
    assert placed.placement.given == {"due": ("cpu-e1",)}
    assert {name: job.reason for name, job in placed.jobs.items()} == {
        "held": "JobHeldAdmin", "later": "BeginTime", "due": "None",
    }  # fmt: skip


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


def test_an_idle_node_goes_after_its_time_and_a_busy_one_never() -> None:
    members = (Member("cpu-e1", ready=True), Member("cpu-e2", ready=True))
    runs = [pod("job", node="cpu-e1"), pod("proxy", node="cpu-e2", daemon=True)]
    first = put(runs, *members)
    assert first.placement.idle_since == {"cpu-e2": 1000.0}
    assert put(runs, *members, before=first.placement, now=1299.0).idle == ()
    assert put(runs, *members, before=first.placement, now=1300.0).idle == ("cpu-e2",)


def test_a_node_that_was_given_up_powers_down_and_its_name_is_free_afterwards() -> None:
    waiting = gpu_pods("train", 2)
    lost = put(waiting).placement.without_nodes(["gpu-e2"], 1000.0)
    assert lost.given == {}
    again = put(waiting, before=lost)
    assert phases(again, Phase.POWERING_DOWN) == ["gpu-e2"]
    assert again.placement.given == {"train": ("gpu-e1", "gpu-e3")}
    assert phases(put([], before=again.placement, now=1010.0), Phase.POWERING_DOWN) == []


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
