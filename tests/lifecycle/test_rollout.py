"""The effects of a rollout, in a world of doubles: what it asks of whom, in which order, and what a kill leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.lifecycle import rollout
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.rollout import RolloutRequest
from gpucluster.rollout.decide import JobPolicy, RolloutPolicy
from gpucluster.spec import ClusterSpec, load
from tests.lifecycle.rollout_world import NEW, OLD, THIRD, Killed, World, WorldNode

HALF = RolloutPolicy(min_capacity=50)


CLUSTER_YML = """\
version: 1
name: demo
cloud: {provider: local}
network:
  vcn_cidr: 10.77.0.0/16
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}
pools:
  cpu: {shape: VM.Standard.E5.Flex, ocpus: 8, memory_gb: 64, count: COUNT}
"""


def spec_of(tmp_path: Path, count: int) -> ClusterSpec:
    file = tmp_path / "cluster.yml"
    file.write_text(CLUSTER_YML.replace("COUNT", str(count)))
    return load(file)


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def world(count: int = 4, **options: Any) -> World:
        names = [f"cpu-{number}" for number in range(1, count + 1)]
        made = World(spec_of(tmp_path, count), {name: WorldNode(name) for name in names}, **options)
        for module in ("time", "cancellation"):
            monkeypatch.setattr(rollout, module, made)
        return made

    return world


def stopped(world: World, request: RolloutRequest | None = None) -> str:
    with pytest.raises(ToolError) as caught:
        world.roll(request)
    return str(caught.value)


# --- the good way -----


def test_each_node_gets_it_once_and_nothing_is_left_to_do(make: Make) -> None:
    world = make(required=3)
    world.roll()
    assert world.images == {NEW}
    assert sorted(world.replaced) == sorted(world.nodes)
    assert world.record is None
    assert not any(node.reason for node in world.nodes.values())
    before = world.builds
    world.roll()
    assert (world.builds, len(world.replaced)) == (before + 1, 4), "the second time is an apply"


def test_a_job_is_waited_for_and_named(make: Make) -> None:
    world = make(2)
    world.nodes["cpu-1"].job = 30
    world.roll()
    assert world.replaced == ["cpu-2", "cpu-1"]
    assert any("job 7 of alice on cpu-1" in line for line in world.said)


def test_jobs_are_requeued_where_the_operator_wants_it(make: Make) -> None:
    world = make(2)
    for node in world.nodes.values():
        node.job = 10**6
    world.roll(RolloutRequest(policy=RolloutPolicy(jobs=JobPolicy.REQUEUE)))
    assert world.images == {NEW}


# --- bad images -----


@pytest.mark.parametrize("how", ["silent", "task", "no GPU"])
def test_a_bad_image_is_taken_back_after_two_nodes(make: Make, how: str) -> None:
    world = make(bad=lambda _node, image: how if image == NEW else "")
    text = stopped(world)
    assert "it was taken back" in text
    assert ({"silent": "it did not come back", "task": "a task failed"}.get(how, how)) in text
    assert world.images == {OLD}
    assert not any(node.reason for node in world.nodes.values())
    assert len(set(world.replaced)) == 2
    # Until cluster.yml asks for another image, an apply leaves the nodes as they are: `build` of the world proves it.
    world.build(None, None, Consent())
    # The next attempt begins again.
    world.bad = lambda _node, _image: ""
    world.roll()
    assert world.images == {NEW}


def test_what_had_passed_is_taken_back_too(make: Make) -> None:
    world = make(6, bad=lambda node, image: "no GPU" if image == NEW and node in ("cpu-3", "cpu-5") else "")
    stopped(world)
    assert world.images == {OLD}


def test_one_bad_host_keeps_its_image_and_the_others_get_the_new_one(make: Make) -> None:
    world = make(bad=lambda node, image: "no GPU" if image == NEW and node == "cpu-2" else "")
    text = stopped(world)
    assert "cpu-2: gpus: no GPU" in text
    assert {name for name, node in world.nodes.items() if node.image == OLD} == {"cpu-2"}
    assert not any(node.reason for node in world.nodes.values())


def test_a_host_that_comes_back_with_no_image_stops_it_and_is_named(make: Make) -> None:
    dead: set[str] = set()

    def bad(node: str, image: str) -> str:
        dead.update({node} if node == "cpu-1" and image == NEW else ())
        return "silent" if node in dead else ""

    text = stopped(make(bad=bad))
    assert "gpucluster replace cpu-1" in text


# --- bad luck -----


def test_an_image_that_disappears_costs_no_node_its_disk(make: Make) -> None:
    world = make()
    world.nodes["cpu-3"].job = world.nodes["cpu-4"].job = 50
    sleep = world.sleep

    def later(seconds: float) -> None:
        world.gone.add(NEW)
        sleep(seconds)

    world.sleep = later  # type: ignore[method-assign]
    text = stopped(world)
    assert "does not exist any more" in text
    assert "2 of 4 nodes have the new image" in text
    assert not any(node.reason for node in world.nodes.values()), "those that were drained take jobs again"
    world.gone, world.desired, world.sleep = set(), THIRD, sleep  # type: ignore[method-assign]
    world.roll()
    assert world.images == {THIRD}


def test_nodes_that_others_have_drained_are_left_to_them(make: Make) -> None:
    world = make()
    world.nodes["cpu-2"].reason = "loud fan"
    text = stopped(world, RolloutRequest(policy=HALF))
    assert "cpu-2: loud fan" in text
    assert (world.nodes["cpu-2"].image, world.nodes["cpu-2"].reason) == (OLD, "loud fan")
    assert [node.image for node in world.nodes.values()].count(NEW) == 3
    world.nodes["cpu-2"].reason = ""
    world.roll()
    assert (world.images, world.record) == ({NEW}, None)


@pytest.mark.parametrize(
    ("what", "text"),
    [({"job": 10**6}, "job 7 of alice on cpu-1"), ({"reserved": True}, "a reservation holds cpu-1, cpu-2")],
)
def test_without_a_free_node_it_ends_after_the_timeout_and_lets_them_in(
    make: Make, what: dict[str, object], text: str
) -> None:
    world = make(2)
    for node in world.nodes.values():
        for name, value in what.items():
            setattr(node, name, value)
    said = stopped(world, RolloutRequest(timeout=60))
    assert "no node of pool cpu is free after 60 s" in said
    assert text in said
    assert not any(node.reason for node in world.nodes.values())
    assert world.images == {OLD}


def test_a_refusal_terminates_nothing_without_consent(make: Make) -> None:
    world = make(refuses="it is not supported")
    text = stopped(world)
    assert "it is not supported" in text
    assert "--replace-nodes" in text
    assert {node.lives for node in world.nodes.values()} == {1}
    assert not any(node.reason for node in world.nodes.values())
    world.roll(RolloutRequest(replace_nodes=True))
    assert {node.lives for node in world.nodes.values()} == {2}
    assert world.images == {NEW}


def test_another_distribution_is_refused(make: Make) -> None:
    world = make()
    world.check_image = lambda image: "Ubuntu" if image == NEW else "Debian"  # type: ignore[method-assign]
    with pytest.raises(InputError, match="same distribution"):
        world.roll()
    assert world.images == {OLD}


def test_what_can_not_be_meant_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 2)
    with pytest.raises(InputError, match="there is no pool gpu"):
        RolloutRequest(pools=["gpu"]).chosen(spec)
    with pytest.raises(InputError, match="--min-capacity 50"):
        RolloutRequest(policy=RolloutPolicy(min_capacity=90)).chosen(spec)


# --- killed at any point -----


def until_it_ends(world: World, request: RolloutRequest | None = None) -> str:
    """Runs again and again, of which each may be killed. Returns the error of the last one."""
    for _ in range(3000):
        try:
            world.roll(request)
        except Killed:
            continue
        except ToolError as error:
            return str(error)
        else:
            return ""
    raise AssertionError("it never ends")


def test_a_node_that_took_a_job_before_the_kill_keeps_it_to_its_end(make: Make) -> None:
    """It had passed and taken a job when the run was killed, before that was stored; in the next run it fails."""
    world = make(2)
    note = world.note_rollouts

    def killed_with_the_first_that_passes(_terraform: Any, records: Any) -> None:
        if any(record.passed for record in records.values()):
            raise Killed
        note(_terraform, records)

    world.note_rollouts = killed_with_the_first_that_passes  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.roll()
    (canary,) = [node for node in world.nodes.values() if node.image == NEW]
    assert not canary.reason
    canary.job = 9
    world.note_rollouts = note  # type: ignore[method-assign]
    world.bad = lambda node, image: "no GPU" if (node, image) == (canary.name, NEW) else ""
    assert canary.name in stopped(world)  # the world raises if the job loses its node
    assert (canary.image, canary.job) == (OLD, 0)


@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_call_it_goes_on_and_no_job_is_lost(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    world = make(16, kill=lambda: chance.random() < 0.05, new_jobs=0.3, required=14, chance=chance)
    how = chance.choice(["silent", "task", "no GPU"])
    sick = set(chance.sample(sorted(world.nodes), 4)) if seed % 3 == 0 else set()
    world.bad = lambda node, image: how if image == NEW and node in sick else ""
    error = until_it_ends(world)
    assert world.images == {OLD if sick else NEW}, error
    assert ("it was taken back" in error) == bool(sick)
    assert not any(node.reason for node in world.nodes.values())


def test_the_64_nodes_of_a_busy_pool(make: Make) -> None:
    chance = random.Random(7)
    world = make(64, new_jobs=0.5, required=58, chance=chance)
    for node in world.nodes.values():
        node.job = chance.randint(0, 20)
    world.roll(RolloutRequest(policy=RolloutPolicy(max_failures=6)))
    assert world.images == {NEW}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_thirty_rollouts_through_64_busy_nodes_with_a_bad_image_in_ten(make: Make, seed: int) -> None:
    """The world raises where a job loses its node, and where fewer than nine of ten nodes serve."""
    chance = random.Random(seed)
    world = make(64, kill=lambda: chance.random() < 0.005, new_jobs=0.5, required=58, chance=chance)
    for node in world.nodes.values():
        node.job = chance.randint(0, 20)
    how = chance.choice(["silent", "task", "no GPU"]) if seed % 3 == 0 else ""
    world.bad = lambda _node, image: how if image == NEW else ""
    error = until_it_ends(world)
    assert world.images == {OLD if how else NEW}, error
    assert ("it was taken back" in error) == bool(how)
    assert len(set(world.replaced)) == (2 if how else 64)
    assert not any(node.reason for node in world.nodes.values())
