"""Scenarios 18 to 32: changes while nodes power up, are up, or power down. See test_scenarios for the method."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.explain import explain_node
from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    Fault,
    Intent,
    Launch,
    MarkDown,
    Memory,
    PowerDown,
    SaveConsole,
    Terminate,
)
from gpucluster.autoscaler.policy import MAX_ORPHANS_PER_PASS
from tests.autoscaler.builders import (
    BUSY,
    COMING,
    DEAD,
    IDLE,
    LEAVING,
    LOST,
    OFF,
    WARMING,
    World,
    job,
    names,
    policy,
    pool,
)


def booting(world: World, *gang: str, number: int = 1) -> None:
    """A job's nodes are launched and run; slurmd has not registered yet."""
    world.starts(number, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(1)


def test_scenario_18_a_node_that_registers_late_is_taken() -> None:
    world = World()
    booting(world, "gpu-e1")
    world.node("gpu-e1", DEAD, "ResumeTimeout reached")
    world.reconcile(1)
    assert world.the(PowerDown)
    world.node("gpu-e1", IDLE)  # it registered before that was carried out
    world.reconcile(1)
    assert world.plan.actions == ()
    assert world.claim("gpu-e1").state == "up"
    world.reconcile(100)
    assert world.plan.actions == ()


def test_scenario_18_a_node_that_powers_down_is_ended_though_it_registers_late() -> None:
    world = World()
    booting(world, "gpu-e1")
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert world.the(Terminate)[0].unless_wanted
    world.becomes("gpu-e1", "TERMINATING")
    world.node("gpu-e1", IDLE)
    world.reconcile(1)
    assert [each.nodes for each in world.the(PowerDown)] == [("gpu-e1",)]  # Slurm must not give it to a job


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


def test_scenario_21_nodes_that_two_jobs_share_are_launched_once() -> None:
    world = World()
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    assert sorted(world.launched()) == ["gpu-e1", "gpu-e2", "gpu-e3"]
    assert world.claim("gpu-e2").jobs == ("1", "2")
    world.reconcile(1)
    assert not world.launched()


def test_scenario_21_a_launch_for_two_jobs_without_an_answer_is_sent_again_once() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.starts(2, ["gpu-e1"])
    world.reconcile()
    assert world.launched() == ["gpu-e1"]
    world.in_flight.clear()  # the answer was lost
    world.reconcile(5)
    assert world.launched() == ["gpu-e1"]


def test_scenario_21_a_shared_node_that_fails_takes_both_gangs_with_it() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    world.accepts("gpu-e1", "gpu-e3")
    world.refuses("gpu-e2")
    world.reconcile(1)
    assert not world.launched()
    assert sorted(name for each in world.the(PowerDown) for name in each.nodes) == ["gpu-e1", "gpu-e2", "gpu-e3"]
    assert sorted(delay.job for delay in world.the(Delay)) == ["1", "2"]
    # Only the first has met the cloud's refusal; the other waits, and reports it.
    said = {delay.job: delay.why for delay in world.the(Delay)}
    assert "no free host" in said["1"]
    assert "it shares nodes with job 1, which has to wait" in said["2"]
    assert "no free host" not in said["2"]
    assert (world.gang(1).attempts, world.gang(2).attempts) == (1, 0)


def test_scenario_21_a_gang_that_fails_leaves_the_nodes_it_shares_to_the_other() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    world.accepts("gpu-e2", "gpu-e3")
    world.refuses("gpu-e1")
    world.reconcile(1)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)
    assert [delay.job for delay in world.the(Delay)] == ["1"]


def test_scenario_22_no_launch_under_a_name_whose_old_instance_still_ends() -> None:
    world = World()
    world.serve("gpu-e1")
    world.jobs.clear()
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert world.the(Terminate)
    world.becomes("gpu-e1", "TERMINATING")
    world.starts(2, ["gpu-e1"])
    for _ in range(10):
        world.reconcile(10)
        assert world.plan.actions == ()
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(1)
    assert [launch.generation for launch in world.the(Launch)] == [2]


def test_scenario_22_an_instance_from_before_is_replaced_and_not_taken_for_the_new_one() -> None:
    world = World()
    world.serve("gpu-e1")
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    world.starts(2, ["gpu-e1"])  # the termination did not get through
    world.reconcile(60)
    (again,) = world.the(Terminate)
    assert not again.unless_wanted
    assert not world.launched()


def test_scenario_23_an_instance_of_a_node_with_a_job_is_not_ended() -> None:
    world = World()
    world.serve("gpu-e1", words=IDLE)
    world.intents.append(Intent("suspend", world.now, ("gpu-e1",)))
    world.node("gpu-e1", BUSY)
    world.reconcile(1)
    assert world.plan.actions == ()
    world.node("gpu-e1", "ALLOCATED+CLOUD+POWERED_DOWN")
    world.reconcile(100)
    world.reconcile(100)
    assert world.plan.actions == ()
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert all(each.unless_wanted for each in world.the(Terminate))


@pytest.mark.parametrize("state", ["TERMINATING", "TERMINATED"])
def test_scenario_24_an_instance_that_goes_under_a_running_job(state: str) -> None:
    world = World()
    world.jobs["1"] = job(1, ["gpu-e1"], state="RUNNING", requeue=False)
    world.serve("gpu-e1")
    world.becomes("gpu-e1", state)
    world.reconcile(10)
    kinds = [type(action) for action in world.plan.actions]
    assert kinds == [Annotate, MarkDown, PowerDown]
    assert "--no-requeue" in world.the(Annotate)[0].why
    assert world.the(MarkDown)[0].why.startswith("gpucluster: ")
    world.node("gpu-e1", LEAVING)
    world.reconcile(60)
    world.node("gpu-e1", OFF)
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(60)
    assert not world.memory.claims
    world.starts(2, ["gpu-e1"])
    world.reconcile(1)
    assert [launch.generation for launch in world.the(Launch)] == [2]


def test_scenario_24_one_that_is_not_listed_any_more_is_lost_after_three_strikes() -> None:
    world = World()
    world.serve("gpu-e1")
    world.instances.clear()
    for _ in range(6):
        world.reconcile(10)
        assert world.plan.actions == ()
    world.reconcile(10)
    assert [each.nodes for each in world.the(PowerDown)] == [("gpu-e1",)]


def test_scenario_24_a_node_that_is_down_with_nothing_behind_it_is_given_up() -> None:
    world = World()
    world.serve("gpu-e1")
    world.becomes("gpu-e1", "TERMINATED")
    world.node("gpu-e1", LOST, "Not responding")
    world.reconcile(1)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)


def test_scenario_24_a_node_that_is_down_and_whose_instance_runs_gets_time_to_come_back() -> None:
    world = World()
    world.serve("gpu-e1")
    world.node("gpu-e1", LOST, "Not responding")
    world.reconcile(1)
    world.reconcile(590)
    assert world.plan.actions == ()
    world.reconcile(20)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)


def test_scenario_25_a_stopped_instance_is_ended_for_it_costs_money() -> None:
    world = World()
    world.serve("gpu-e1")
    world.becomes("gpu-e1", "STOPPED")
    world.reconcile(1)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert [each.node for each in world.the(Terminate)] == ["gpu-e1"]


def test_scenario_25_one_that_is_stopped_while_it_comes_up_is_replaced() -> None:
    world = World()
    booting(world, "gpu-e1")
    world.becomes("gpu-e1", "STOPPED")
    world.reconcile(1)
    assert [each.node for each in world.the(Terminate)] == ["gpu-e1"]
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(1)
    assert [launch.generation for launch in world.the(Launch)] == [2]


def test_scenario_26_orphans_are_ended_after_a_while_and_not_too_many_at_once() -> None:
    world = World()
    for number in range(100, 130):
        world.instance(f"gpu-e{number}")
    for _ in range(30):
        world.reconcile(10)
        assert world.plan.actions == ()
    ended: list[str] = []
    for _ in range(5):
        world.reconcile(4)
        assert len(world.the(Terminate)) <= MAX_ORPHANS_PER_PASS
        ended += [each.instance_id for each in world.the(Terminate)]
    assert len(ended) == len(set(ended)) == 30
    for one in list(world.instances.values()):
        world.becomes(one.node, "TERMINATED")
    world.reconcile(1)
    assert not world.memory.orphans_seen


def test_scenario_26_an_instance_of_a_node_that_is_powered_down_is_ended() -> None:
    world = World()
    world.instance("gpu-e1")
    world.reconcile(1)
    assert world.plan.actions == ()
    world.reconcile(31)
    assert [(each.node, each.unless_wanted) for each in world.the(Terminate)] == [("gpu-e1", True)]


def test_scenario_27_of_two_instances_the_one_that_registered_is_kept() -> None:
    world = World()
    world.instance("gpu-e1", generation=1)
    kept = world.instance("gpu-e1", generation=2)
    world.node("gpu-e1", BUSY, instance_id=kept.id)
    world.reconcile()
    assert [each.instance_id for each in world.the(Terminate)] == ["ocid.gpu-e1.1"]
    assert world.claim("gpu-e1").instance_id == kept.id
    world.reconcile(1)
    assert world.plan.actions == ()


def test_scenario_27_where_no_source_knows_the_one_we_know_of_is_kept() -> None:
    world = World()
    booting(world, "gpu-e1")
    world.instance("gpu-e1", "STARTING", generation=7)
    world.reconcile(1)
    assert [each.instance_id for each in world.the(Terminate)] == ["ocid.gpu-e1.7"]


@pytest.mark.parametrize("words", ["IDLE+CLOUD+DRAIN", "ALLOCATED+CLOUD+DRAIN", COMING + "+DRAIN"])
def test_scenario_28_what_an_operator_drained_is_left_alone(words: str) -> None:
    world = World()
    booting(world, "gpu-e1")
    world.node("gpu-e1", words, "fan is loud", reason_user="ana")
    for _ in range(5):
        world.reconcile(100)
        assert not world.the(PowerDown)
        assert not world.the(Terminate)
    lines = explain_node("gpu-e1", world.observation(), world.memory, world.policy, world.now)
    assert any("fan is loud" in line for line in lines)
    world.runs("gpu-e1", words=IDLE)
    world.reconcile(1)
    assert world.plan.actions == ()


@pytest.mark.parametrize(
    ("reason", "user"),
    [
        ("Kill task failed", "root"),
        ("gres/gpu count reported lower than configured (7 < 8)", "slurm"),
        ("Node has too few moons", "slurm"),
    ],
)
def test_scenario_28_what_slurm_itself_drained_is_replaced_when_its_jobs_have_ended(reason: str, user: str) -> None:
    world = World()
    world.serve("gpu-e1")
    world.node("gpu-e1", "ALLOCATED+CLOUD+DRAIN", reason, reason_user=user)
    world.reconcile(100)
    assert not world.the(PowerDown)
    world.node("gpu-e1", "IDLE+CLOUD+DRAIN", reason, reason_user=user)
    world.reconcile(100)
    (given_up,) = world.the(PowerDown)
    assert reason in given_up.why
    lines = explain_node("gpu-e1", world.observation(), world.memory, world.policy, world.now)
    assert not any("administrator" in line for line in lines)


@pytest.mark.parametrize("words", [LOST, DEAD])
def test_scenario_28_what_an_operator_took_down_is_left_alone(words: str) -> None:
    world = World()
    world.serve("gpu-e1")
    world.instances.clear()
    world.node("gpu-e1", words, "sent to repair", reason_user="ana")
    for _ in range(5):
        world.reconcile(100)
        assert not {type(action) for action in world.plan.actions} - {Terminate}


def test_scenario_29_an_instance_that_another_took_the_place_of_is_not_fought_over() -> None:
    world = World()
    world.serve("gpu-e1")
    world.becomes("gpu-e1", "TERMINATED")
    world.instance("gpu-e1", "RUNNING", 1, id="ocid.replacement")
    for _ in range(5):
        world.reconcile(10)
        assert world.plan.actions == ()
    assert world.claim("gpu-e1").instance_id == "ocid.replacement"


def test_scenario_30_fewer_instances_than_were_asked_for_is_a_gang_that_failed() -> None:
    world, gang = World(policy(gang_retry_window=0)), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:2])
    world.reconcile(300)
    assert world.plan.actions == ()  # two are still queued: no busy loop
    world.refuses(*gang[2:])
    world.reconcile(1)
    assert sorted(world.the(PowerDown)[0].nodes) == gang


def test_scenario_31_a_node_without_its_rdma_network_never_registers_and_is_replaced() -> None:
    world, gang = World(policy(pool(rdma := "rdma", compute_cluster_id="cluster"))), names(1, 16, "rdma-e")
    assert rdma
    booting(world, *gang)
    world.runs(*gang[1:])
    world.reconcile(700)
    assert [each.node for each in world.the(SaveConsole)] == gang[:1]
    assert [each.node for each in world.the(Terminate)] == gang[:1]
    world.becomes(gang[0], "TERMINATED")
    world.reconcile(5)
    assert world.launched() == gang[:1]
    assert not world.the(PowerDown)  # its fifteen siblings wait for it


def test_scenario_32_a_node_whose_check_failed_is_replaced_when_its_job_is_over() -> None:
    world = World()
    world.jobs["1"] = job(1, ["gpu-e1"], state="RUNNING")
    world.serve("gpu-e1")
    world.node("gpu-e1", "ALLOCATED+CLOUD+DRAIN", "gpucluster: a GPU is missing")
    world.reconcile(1)
    assert world.plan.actions == ()
    world.node("gpu-e1", "IDLE+CLOUD+DRAIN", "gpucluster: a GPU is missing")
    world.reconcile(1)
    assert [each.nodes for each in world.the(PowerDown)] == [("gpu-e1",)]


def test_a_slurmd_that_is_silent_for_long_is_given_up() -> None:
    world = World()
    world.serve("gpu-e1", "gpu-e2")
    world.node("gpu-e1", BUSY + "+NOT_RESPONDING")
    world.reconcile(1)
    world.reconcile(500)
    assert world.plan.actions == ()
    world.reconcile(110)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)
    assert world.claim("gpu-e1").fault == Fault.LOST


def test_a_new_ledger_asks_with_other_tokens() -> None:
    assert Memory("a").token("gpu-e1", 1) != Memory("b").token("gpu-e1", 1)
    assert len(Memory("a").token("gpu-e1", 1)) <= 64
