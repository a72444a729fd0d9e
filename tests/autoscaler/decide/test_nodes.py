"""One node at a time: its phase in the scheduler against the instance under its name. See scenario_steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.explain import explain_node
from gpucluster.autoscaler.decide.nodes import MAX_HEALED_PER_PASS
from gpucluster.autoscaler.decide.types import (
    Annotate,
    Fault,
    Intent,
    Job,
    Join,
    Launch,
    MarkDown,
    PowerDown,
    SaveConsole,
    Terminate,
)
from gpucluster.node_agent.rules import reasons
from tests.autoscaler.builders import (
    BUSY,
    COMING,
    DEAD,
    IDLE,
    LEAVING,
    LOST,
    NOON,
    OFF,
    WAITED_FOR,
    WARMING,
    World,
    job,
    names,
    policy,
    pool,
)
from tests.autoscaler.decide.scenario_steps import ONE, booting, failing


def test_scenario_16_a_node_that_never_registers_is_replaced() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1")
    world.reconcile(2)
    world.becomes("gpu-e1", "RUNNING")
    world.reconcile(60)
    world.reconcile(599)
    assert world.plan.actions == ()
    world.reconcile(2)
    assert len(world.the(SaveConsole)) == 1
    assert len(world.plan.actions) == 2
    assert not world.the(Terminate)[0].unless_wanted
    world.becomes("gpu-e1", "TERMINATING")
    world.reconcile(5)
    assert world.plan.actions == ()  # the name is not free yet
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(5)
    assert [launch.generation for launch in world.the(Launch)] == [2]
    assert world.now - NOON < 1800  # Slurm's ResumeTimeout


def test_scenario_16_a_configuration_that_could_not_be_requested_is_requested_again() -> None:
    world = World(policy(pool(baked=False)))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.reconcile(1)
    world.reconcile(1, unasked=frozenset({"ocid.gpu-e1.1"}))
    assert [join.instance_id for join in world.the(Join)] == ["ocid.gpu-e1.1"]
    world.joining.add("ocid.gpu-e1.1")
    world.reconcile(1)
    assert world.plan.actions == ()
    assert world.claim("gpu-e1").state == "joining"


def test_scenario_16_an_unbaked_node_is_configured_first_and_then_awaited() -> None:
    world = World(policy(pool(baked=False)))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.reconcile(1)
    assert [type(action).__name__ for action in world.plan.actions] == ["Join"]
    world.joining.add("ocid.gpu-e1.1")
    world.reconcile(900)  # longer than a baked node may take to register
    assert world.plan.actions == ()
    world.joining.clear()
    world.reconcile(1)
    assert world.claim("gpu-e1").state == "running"
    world.reconcile(590)
    assert world.plan.actions == ()
    world.join_failed["ocid.gpu-e1.1"] = "gpu-e1: the home directory can't be mounted"
    world.reconcile(1)
    assert "home directory" in world.the(SaveConsole)[0].why
    assert world.the(Terminate)


@pytest.mark.parametrize("baked", [True, False])
def test_scenario_16_a_node_whose_checks_fail_at_boot_is_replaced_and_reports_why(baked: bool) -> None:
    world = World(policy(pool(baked=baked)))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.reconcile(1)
    reason = reasons.of_checks([("gpu_count", "7 of 8 GPUs")], again=False)
    # The failed configuration is the consequence, and not the cause.
    world.join_failed["ocid.gpu-e1.1"] = "slurmd does not start"
    world.reconcile(1, unfit={"ocid.gpu-e1.1": reason})
    assert world.the(SaveConsole)
    (ended,) = world.the(Terminate)
    assert ended.instance_id == "ocid.gpu-e1.1"
    assert "its checks at boot failed: gpu_count: 7 of 8 GPUs" in ended.why
    assert world.memory.boot_failures["gpu"] == 1
    said = explain_node("gpu-e1", world.observation(), world.memory, world.policy, world.now)
    assert "7 of 8 GPUs" in "\n".join(said)
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(60, unfit={"ocid.gpu-e1.1": reason})
    assert world.launched() == ["gpu-e1"]


REPORTING = replace(policy(), hardware_checks=frozenset({"gpu_count"}))


@pytest.mark.parametrize(
    ("check", "message", "bad_host"),
    [
        ("gpu_count", "7 of 8 GPUs", "gpu_count: 7 of 8 GPUs"),
        ("mounts", "gpu_count: no", ""),
        ("gpu_count", "NVIDIA's driver is not loaded", ""),
    ],
)
def test_a_node_that_is_bad_at_boot_or_in_service_has_its_host_reported(
    check: str, message: str, bad_host: str
) -> None:
    reason = reasons.of_checks([(check, message)], again=False)
    at_boot = World(REPORTING)
    at_boot.starts(1, ["gpu-e1"])
    at_boot.reconcile()
    at_boot.accepts("gpu-e1", state="RUNNING")
    at_boot.reconcile(1)
    at_boot.reconcile(1, unfit={"ocid.gpu-e1.1": reason})
    assert [ended.bad_host for ended in at_boot.the(Terminate)] == [bad_host]

    for words in ("IDLE+CLOUD+DRAIN", "DOWN+CLOUD+DRAIN"):
        in_service = World(REPORTING)
        in_service.serve("gpu-e1")
        in_service.node("gpu-e1", words, reason)
        in_service.reconcile(100)
        assert in_service.the(PowerDown), words
        in_service.node("gpu-e1", "IDLE+CLOUD+POWERING_DOWN", reason)
        in_service.reconcile(1)
        assert [ended.bad_host for ended in in_service.the(Terminate)] == [bad_host], words
        # Its next instance may be on another host.
        in_service.becomes("gpu-e1", "TERMINATED")
        in_service.node("gpu-e1", "IDLE+CLOUD+POWERED_DOWN")
        in_service.reconcile(60)
        assert not in_service.memory.claims or not in_service.memory.claims["gpu-e1"].bad_host


def test_without_the_setting_no_host_is_reported() -> None:
    world = World(policy())
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.reconcile(1)
    world.reconcile(1, unfit={"ocid.gpu-e1.1": reasons.of_checks([("gpu_count", "7 of 8 GPUs")], again=False)})
    assert [ended.bad_host for ended in world.the(Terminate)] == [""]


def test_scenario_16b_with_kubernetes_the_checks_at_boot_are_a_part_of_the_configuration() -> None:
    world = World(policy(pool()))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.reconcile(1)
    reason = reasons.of_checks([("mounts", "/mnt/home is not mounted")], again=False)
    world.join_failed["ocid.gpu-e1.1"] = f"health : Make the checks of its boot: {reason}"
    world.reconcile(1)
    (ended,) = world.the(Terminate)
    assert "its checks at boot failed: mounts: /mnt/home is not mounted; it is replaced" in ended.why
    # They count for the breaker of the pool as every other failure at boot.
    assert world.memory.boot_failures["gpu"] == 1


def test_scenario_17_a_node_that_slurm_gave_up_is_ended_and_healed() -> None:
    world, gang = World(), names(1, 2)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(1)
    world.jobs["1"] = Job("1", "1", "PENDING", "BeginTime", ("gpu",), (), 2, eligible_at=world.now + 31)
    world.node("gpu-e1", DEAD, "ResumeTimeout reached")
    world.node("gpu-e2", WARMING)
    world.intents.append(Intent("resume_fail", world.now, ("gpu-e1",)))
    world.reconcile(5)
    assert [each.nodes for each in world.the(PowerDown)] == [("gpu-e1",)]  # its sibling is kept for the job
    assert world.the(SaveConsole)
    world.node("gpu-e1", LEAVING)
    world.reconcile(1)
    assert [each.node for each in world.the(Terminate)] == ["gpu-e1"]
    world.becomes("gpu-e1", "TERMINATED")
    world.node("gpu-e1", OFF)
    world.reconcile(30)
    assert "gpu-e1" not in world.memory.claims
    world.node("gpu-e2", COMING)
    world.starts(1, ["gpu-e2", "gpu-e3"])
    world.reconcile(1)
    assert world.launched() == ["gpu-e3"]


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


def test_scenario_24_a_preemptible_one_that_the_cloud_takes_back_is_lost_and_named_as_such() -> None:
    world = World(policy(pool(preemptible=True)))
    world.jobs["1"] = job(1, ["gpu-e1"], state="RUNNING")
    world.serve("gpu-e1")
    world.becomes("gpu-e1", "TERMINATED")
    world.reconcile(10)
    assert [type(action) for action in world.plan.actions] == [MarkDown, PowerDown]
    assert "its preemptible instance " in world.the(MarkDown)[0].why


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


FIRST = "gpucluster: check failed, reboot first: gpu_xid: Xid 79"


@pytest.mark.parametrize(
    ("words", "reason", "user"),
    [
        ("IDLE+CLOUD+DRAIN", FIRST, "slurm"),
        ("IDLE+CLOUD+DRAIN", "Kill task failed", "root"),
        ("IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", FIRST, "slurm"),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", f"{FIRST} : reboot issued", "slurm"),
        # Back, and its checks are not judged yet.
        ("IDLE+CLOUD+DRAIN", f"{FIRST} : reboot issued", "slurm"),
    ],
)
def test_what_a_reboot_may_fix_is_not_replaced_before_it(words: str, reason: str, user: str) -> None:
    for reboots in (True, False):
        world = World(replace(policy(), reboots=reboots))
        world.serve("gpu-e1")
        world.node("gpu-e1", words, reason, reason_user=user)
        for _ in range(20):
            world.reconcile(100)
            if reboots:
                assert not world.the(PowerDown)
                assert not world.the(Terminate)
            elif world.the(PowerDown):
                break
        else:
            assert reboots, "without a service that reboots it, it is replaced at once"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("IDLE+CLOUD+DRAIN", "gpucluster: check failed: gpu_xid: Xid 79 (still so after a reboot)"),
        ("DOWN+CLOUD+DRAIN", "gpucluster: check failed: gpu_xid: Xid 79 (it did not come back from a reboot)"),
    ],
)
def test_what_no_reboot_has_fixed_is_replaced(words: str, reason: str) -> None:
    world = World(replace(policy(), reboots=True))
    world.serve("gpu-e1")
    world.node("gpu-e1", words, reason, reason_user="slurm")
    world.reconcile(100)
    (given_up,) = world.the(PowerDown)
    assert "reboot" in given_up.why


def test_a_node_that_slurm_gave_up_after_its_reboot_is_replaced_when_it_was_silent_for_long() -> None:
    """The health service gives it another reason within seconds. Without that service it is replaced all the same."""
    world = World(replace(policy(), reboots=True))
    world.serve("gpu-e1")
    world.node(
        "gpu-e1", "DOWN+CLOUD+NOT_RESPONDING", f"{FIRST} : reboot issued : reboot timed out", reason_user="slurm"
    )
    world.reconcile(1)
    assert not world.the(PowerDown)
    world.reconcile(world.policy.times.silent_grace + 1)
    assert world.the(PowerDown)


def test_an_instance_that_is_gone_waits_for_no_reboot() -> None:
    world = World(replace(policy(), reboots=True))
    world.serve("gpu-e1")
    world.becomes("gpu-e1", "STOPPED")
    world.node("gpu-e1", "DOWN+CLOUD+DRAIN+REBOOT_ISSUED", f"{FIRST} : reboot issued", reason_user="slurm")
    world.reconcile(100)
    assert world.the(PowerDown)


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


def test_what_was_just_given_up_is_not_started_again_because_slurm_is_slow() -> None:
    world = failing()
    world.refuses(*names(1, 2), fault=Fault.TRANSIENT)
    world.refuses("gpu-e2")
    world.reconcile(1)
    assert world.the(PowerDown)
    world.policy = replace(world.policy)
    world.memory = replace(world.memory, cool_downs={})
    world.reconcile(5)
    assert world.plan.actions == ()
    world.jobs.clear()
    world.are(names(1, 2), WARMING)
    world.reconcile(15)
    assert not world.launched()
    assert sorted(world.the(PowerDown)[0].nodes) == names(1, 2)


def test_healing_is_spread_over_looks() -> None:
    world = World(policy(pool(names=1200)))
    world.are(names(1, 1200), DEAD, "gpucluster: no capacity")
    world.reconcile()
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == MAX_HEALED_PER_PASS


def test_healing_is_not_asked_for_twice_before_it_can_show() -> None:
    world = World()
    world.are([ONE], DEAD, "gpucluster: no capacity")
    world.reconcile()
    assert [each.nodes for each in world.the(PowerDown)] == [(ONE,)]
    world.reconcile(5)
    assert world.plan.actions == ()
    world.reconcile(11)
    assert [each.nodes for each in world.the(PowerDown)] == [(ONE,)]


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "with a job that waits"])
def test_a_powered_down_node_for_which_slurm_waits_is_healed(waits: bool) -> None:
    world = World()
    world.node(ONE, WAITED_FOR)
    world.node("gpu-e2", WAITED_FOR, "")
    world.node("gpu-e3", OFF)
    if waits:
        world.waits(1)
    world.reconcile()
    assert [sorted(each.nodes) for each in world.the(PowerDown)] == [[ONE, "gpu-e2"]]
    world.reconcile(5)
    assert not world.the(PowerDown)
    world.reconcile(11)
    assert [sorted(each.nodes) for each in world.the(PowerDown)] == [[ONE, "gpu-e2"]]
    world.are([ONE, "gpu-e2"], OFF)
    world.reconcile(60)
    assert world.plan.actions == ()


@pytest.mark.parametrize(
    "words",
    [
        # The drain is an administrator's, and powering down would end it.
        "IDLE+CLOUD+DRAIN+POWERED_DOWN+NOT_RESPONDING",
        # Slurm powers them up.
        "ALLOCATED+CLOUD+POWERED_DOWN+NOT_RESPONDING",
        "IDLE+CLOUD+POWERED_DOWN+POWER_UP+NOT_RESPONDING",
        WARMING,
    ],
)
def test_a_node_that_is_drained_or_wanted_is_not_healed(words: str) -> None:
    world = World()
    world.node(ONE, words, "fan is loud" if "DRAIN" in words else "")
    world.reconcile()
    assert not world.the(PowerDown)


def test_healing_of_nodes_for_which_slurm_waits_is_spread_as_well() -> None:
    world = World(policy(pool(names=1200)))
    world.are(names(1, 1200), WAITED_FOR)
    world.reconcile()
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == MAX_HEALED_PER_PASS


def test_a_node_that_powers_up_again_with_its_old_instance_is_given_its_time_and_then_replaced() -> None:
    world = World()
    world.serve(ONE)
    world.starts(1, [ONE])
    world.reconcile(1)
    assert world.plan.actions == ()
    world.reconcile(300)
    assert world.plan.actions == ()
    world.reconcile(400)
    assert [each.node for each in world.the(Terminate)] == [ONE]


def test_a_node_that_is_off_all_at_once_is_given_a_moment() -> None:
    world = World()
    world.serve(*names(1, 15))
    world.are(names(1, 15), OFF)
    world.reconcile(1)
    world.reconcile(20)
    assert world.plan.actions == ()
    world.reconcile(15)
    assert len(world.the(Terminate)) == 10  # no more at once on this word
    world.reconcile(1)
    assert len(world.the(Terminate)) == 5


def test_an_instance_that_is_being_configured_is_not_hurried() -> None:
    world = World(policy(pool(baked=False)))
    world.starts(1, [ONE])
    world.reconcile()
    world.accepts(ONE, state="RUNNING")
    world.reconcile(1)
    world.reconcile(5)
    assert world.claim(ONE).state == "running"
    world.joining.add(world.claim(ONE).instance_id)
    world.reconcile(500)
    world.reconcile(500)
    assert world.plan.actions == ()
    assert world.claim(ONE).state == "joining"
    world.reconcile(1001)
    assert "was not configured" in world.the(Terminate)[0].why


def test_an_instance_that_is_listed_again_has_no_strikes() -> None:
    world = World()
    world.serve(ONE)
    kept = world.instances.pop("ocid.gpu-e1.1")
    world.reconcile(10)
    world.reconcile(10)
    world.instances[kept.id] = kept
    world.reconcile(10)
    world.instances.clear()
    for _ in range(6):
        world.reconcile(10)
        assert world.plan.actions == ()


def test_a_node_that_did_not_come_up_is_repaired_whatever_its_reason_was_long_ago() -> None:
    world = World()
    world.starts(1, [ONE])
    world.reconcile()
    world.accepts(ONE, state="RUNNING")
    world.reconcile(1)
    world.node(ONE, DEAD, "fan is loud")
    world.reconcile(1)
    assert world.the(PowerDown)


def test_a_node_that_is_down_and_not_reserved_is_lost_only_once() -> None:
    world = World()
    world.serve(ONE)
    world.becomes(ONE, "TERMINATED")
    world.node(ONE, BUSY)
    world.reconcile(1)
    assert world.the(PowerDown)
    world.node(ONE, LOST, "gpucluster: its instance is gone")
    world.reconcile(1)
    assert world.the(PowerDown)
    world.node(ONE, LEAVING)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.the(Launch)
