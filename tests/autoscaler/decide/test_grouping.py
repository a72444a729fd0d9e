"""Which nodes that power up belong together, and what becomes of those whose job is gone. See scenario_steps."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.types import (
    Delay,
    Intent,
    Launch,
    PowerDown,
    Terminate,
)
from tests.autoscaler.builders import (
    COMING,
    IDLE,
    LEAVING,
    OFF,
    WARMING,
    World,
    names,
)
from tests.autoscaler.decide.scenario_steps import ONE, booting


def test_scenario_19_nodes_of_a_cancelled_job_go_to_the_next_one() -> None:
    world, gang = World(), names(1, 4)
    booting(world, *gang)
    world.jobs.clear()
    world.are(gang, WARMING)
    world.waits(2, node_count=3)
    world.reconcile(1)
    (given_up,) = world.the(PowerDown)
    assert len(given_up.nodes) == 1  # the other three can be used
    kept = sorted(set(gang) - set(given_up.nodes))
    world.are(given_up.nodes, LEAVING)
    world.jobs.clear()
    world.starts(3, kept)
    world.reconcile(1)
    assert not world.the(Launch)
    assert world.claim(kept[0]).jobs == ("3",)


@pytest.mark.parametrize(
    ("reason", "partitions", "eligible"),
    [("JobHeldUser", "gpu", 0), ("Dependency", "gpu", 0), ("Resources", "other", 0), ("BeginTime", "gpu", 1e10)],
)
def test_scenario_19_a_waiting_job_that_cannot_use_them_does_not_keep_nodes(
    reason: str, partitions: str, eligible: float
) -> None:
    world, gang = World(), names(1, 4)
    booting(world, *gang)
    world.jobs.clear()
    world.are(gang, WARMING)
    world.waits(2, node_count=4, reason=reason, partitions=(partitions,), eligible_at=eligible)
    world.reconcile(1)
    assert sorted(world.the(PowerDown)[0].nodes) == gang


def test_scenario_19_a_job_cancelled_at_once_launches_nothing_and_one_still_queued_is_cancelled() -> None:
    world = World()
    world.node("gpu-e1", WARMING)
    world.intents.append(Intent("resume", world.now, ("gpu-e1",), {"1": ("gpu-e1",)}))
    world.reconcile()
    assert not world.launched()
    assert world.the(PowerDown)
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.jobs.clear()
    world.node("gpu-e1", WARMING)
    world.reconcile(1)
    assert world.the(PowerDown)
    assert world.claim("gpu-e1").state != "intended"  # so the executor does not send it
    world.reconcile(20)
    assert world.the(PowerDown)  # sent again, should Slurm not have taken it
    world.accepts("gpu-e1")  # it had been sent already
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert [each.instance_id for each in world.the(Terminate)] == ["ocid.gpu-e1.1"]


def test_scenario_20_a_job_that_is_requeued_smaller_leaves_no_node_behind() -> None:
    world, gang = World(), names(1, 4)
    booting(world, *gang)
    world.jobs.clear()
    world.waits(1, node_count=2, reason="BeginTime", eligible_at=world.now + 31)
    world.are(gang, WARMING)
    world.reconcile(1)
    assert len(world.the(PowerDown)[0].nodes) == 2
    world.jobs.clear()
    world.waits(1, node_count=2, reason="JobHeldUser")
    world.are(world.the(PowerDown)[0].nodes, LEAVING)
    world.reconcile(1)
    assert len(world.the(PowerDown)[0].nodes) == 2


@pytest.mark.parametrize("words", ["COMPLETING+CLOUD+POWERING_UP", COMING])
def test_a_job_that_the_list_lacks_is_waited_for(words: str) -> None:
    world = World()
    world.node(ONE, words)
    world.reconcile()
    assert world.plan.actions == ()


def test_an_interactive_job_that_runs_before_its_nodes_are_there_is_a_gang_too() -> None:
    world = World()
    world.starts(1, names(1, 2), state="RUNNING", requeue=False)
    world.reconcile()
    assert sorted(world.launched()) == names(1, 2)
    world.accepts("gpu-e1")
    for _ in range(60):
        world.refuses(*[name for name in world.launched() if name == "gpu-e2"])
        if world.now == world.memory.claims["gpu-e2"].since:
            world.refuses("gpu-e2")
        world.reconcile(5)
        if world.the(PowerDown):
            break
    assert sorted(world.the(PowerDown)[0].nodes) == names(1, 2)


def test_scenario_35_a_node_that_an_operator_powers_up_is_launched() -> None:
    world = World()
    world.are(["gpu-e1", "gpu-e2"], WARMING)
    world.reconcile()
    assert sorted(world.launched()) == ["gpu-e1", "gpu-e2"]
    world.accepts("gpu-e1")
    world.refuses("gpu-e2")
    for _ in range(40):
        world.reconcile(5)
        world.refuses(*world.launched())
        if world.the(PowerDown):
            break
    assert world.the(PowerDown)[0].nodes == ("gpu-e2",)
    assert not world.the(Delay)
    world.runs("gpu-e1", words=IDLE)
    world.node("gpu-e2", OFF)
    world.reconcile(10)
    assert world.claim("gpu-e1").state == "up"
