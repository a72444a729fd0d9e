"""The fifty scenarios that the autoscaler must survive, 1 to 17: launches and their results.

Each test is named by its number. The test sets the state of Slurm and the cloud (see builders); nothing is simulated.
Where a scenario is about the services, the test here proves the decision, and other tests prove the effects:
test_slurm_parsing.py (13, what scontrol prints), test_ledger.py (38, and 40, the lock), test_oci.py (43, signing),
test_hooks.py (44 and 45), and test_harness_*.py.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.explain import explain_job, explain_node
from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    Fault,
    Hold,
    Intent,
    Job,
    Join,
    Launch,
    MarkDown,
    Outcome,
    PowerDown,
    SaveConsole,
    Terminate,
)
from gpucluster.autoscaler.policy import MAX_ATTEMPTS
from gpucluster.node_agent.rules import reasons
from tests.autoscaler.builders import (
    BUSY,
    COMING,
    DEAD,
    IDLE,
    LEAVING,
    NOON,
    OFF,
    WARMING,
    World,
    job,
    names,
    policy,
    pool,
)

LIMIT = "400 LimitExceeded: The following service limits were exceeded: gpu4-count"
BAD_IMAGE = "404 NotAuthorizedOrNotFound: imageId ocid1.image.oc1..gone was not found"


def retry_until_given_up(world: World, refused: list[str], **refusal: object) -> int:
    """Refuse every launch of these nodes until the gang is given up; how many launches that took."""
    launches = 0
    for _ in range(100):
        world.reconcile(5)
        if world.the(PowerDown):
            return launches
        again = [name for name in world.launched() if name in refused]
        launches += len(again)
        world.refuses(*again)
    raise AssertionError("the gang is never given up")


def requeued(world: World, number: int, gave: list[str], **changes: object) -> None:
    """Slurm has carried out a PowerDown: the job waits, its nodes power down."""
    world.are(gave, LEAVING)
    values: dict[str, object] = {"reason": "BeginTime", "eligible_at": world.now + 31, "node_count": len(gave)}
    world.waits(number, **{**values, **changes})


def test_scenario_01_all_launches_work_and_nothing_is_left_afterwards() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    world.reconcile()
    assert sorted(world.launched()) == sorted(gang)
    assert all(
        launch.generation == 1 and launch.pool == "gpu" and "job 1" in launch.why for launch in world.the(Launch)
    )
    world.reconcile(1)
    assert world.plan.actions == ()  # they are in flight
    world.accepts(*gang)
    world.reconcile(3)
    world.runs(*gang)
    world.jobs["1"] = job(1, gang, state="RUNNING")
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.memory.gangs
    world.reconcile(1)
    assert world.plan.memory is world.memory
    del world.jobs["1"]
    world.are(gang, IDLE)
    world.reconcile(500)
    assert world.plan.actions == ()  # how long a node idles is Slurm's to count
    world.are(gang, LEAVING)
    world.reconcile(100)
    assert sorted(each.node for each in world.the(Terminate)) == sorted(gang)
    assert all(each.unless_wanted for each in world.the(Terminate))
    world.reconcile(1)
    assert not world.plan.actions  # asked once, not in every pass
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.are(gang, OFF)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.memory.claims


def test_scenario_02_one_launch_of_sixteen_without_capacity_rolls_the_whole_gang_back() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:15])
    world.refuses(gang[15])
    launches = retry_until_given_up(world, gang[15:])
    assert 3 <= launches <= 12
    assert 120 <= world.now - NOON <= 135
    (given_up,) = world.the(PowerDown)
    assert sorted(given_up.nodes) == sorted(gang)
    (delay,) = world.the(Delay)
    assert delay.job == "1"
    assert delay.until > world.now + 60
    assert "Out of host capacity" in delay.why
    assert "try 1 of 5" in delay.why
    assert " UTC" in delay.why
    order = [type(action) for action in world.plan.actions]
    assert order.index(MarkDown) < order.index(PowerDown) < order.index(Delay)
    requeued(world, 1, gang, eligible_at=delay.until)
    world.reconcile(1)
    assert sorted(each.node for each in world.the(Terminate)) == sorted(gang[:15])
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.are(gang, OFF)
    world.reconcile(60)
    assert not world.memory.claims
    assert world.gang(1).attempts == 1


def test_scenario_02_the_missing_one_comes_within_the_window() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:3])
    world.refuses(gang[3])
    world.reconcile(1)
    assert not world.launched()
    world.reconcile(15)
    assert world.launched() == [gang[3]]
    assert world.the(Launch)[0].generation == 2
    world.accepts(gang[3])
    world.reconcile(1)
    world.runs(*gang)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert {world.claim(name).state for name in gang} == {"up"}


def test_scenario_02_each_time_the_wait_doubles_and_at_last_the_job_is_held() -> None:
    world, waits = World(policy(backoff=1000)), []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        world.starts(1, names(1, 2))
        world.reconcile(5000)
        world.are(names(3, 40), OFF)
        world.refuses(*world.launched())
        retry_until_given_up(world, names(1, 2))
        if attempt < MAX_ATTEMPTS:
            waits.append(world.the(Delay)[0].until - world.now)
        requeued(world, 1, names(1, 2))
        world.reconcile(1)
        world.are(names(1, 40), OFF)
        world.reconcile(200)
    assert waits[0] < waits[1]
    assert all(1000 <= wait <= 3600 * 1.3 for wait in waits)
    assert [hold.job for hold in world.the(Hold)] or world.gang(1).held
    assert "release it" in world.gang(1).message


@pytest.mark.parametrize("by", ["the record of the work", "the listing"])
def test_scenario_03_capacity_that_fails_late_is_capacity_that_fails(by: str) -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang)
    world.reconcile(2)
    world.becomes(gang[0], "TERMINATED")
    if by == "the record of the work":
        claim = world.claim(gang[0])
        world.outcomes.append(Outcome(claim.token, gang[0], claim.instance_id, Fault.CAPACITY, "Out of host capacity"))
    world.reconcile(5)
    assert world.claim(gang[0]).fault == Fault.CAPACITY
    assert retry_until_given_up(world, gang[:1]) >= 2
    assert sorted(world.the(PowerDown)[0].nodes) == sorted(gang)
    assert world.the(Delay)


def test_scenario_04_the_other_pool_of_the_partition_takes_over() -> None:
    world = World(policy(pool("one"), pool("two", availability_domain="AD-2")))
    gang = names(1, 4, "one-e")
    world.starts(1, gang)
    world.reconcile()
    world.refuses(*gang)
    retry_until_given_up(world, gang)
    (marked,) = world.the(MarkDown)
    assert set(marked.nodes) == set(names(5, 40, "one-e"))
    assert marked.why.startswith("gpucluster: ")
    assert not world.the(Delay)  # nothing is to be waited for
    assert [tell.job for tell in world.the(Annotate)] == ["1"]
    assert "another pool" in world.the(Annotate)[0].why
    world.are(names(5, 40, "one-e"), DEAD, marked.why)
    requeued(world, 1, gang)
    world.reconcile(1)
    world.are(gang, OFF)
    world.reconcile(31)
    assert set(world.the(MarkDown)[0].nodes) == set(gang)
    world.are(gang, DEAD, marked.why)
    there = names(1, 4, "two-e")
    world.starts(1, there)
    world.reconcile(1)
    assert sorted(world.launched()) == there
    assert not world.the(PowerDown)


def test_scenario_04_a_cool_down_ends_with_one_try_and_then_for_all() -> None:
    world = World(policy(pool(max_nodes=40)))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.refuses("gpu-e1")
    retry_until_given_up(world, ["gpu-e1"])
    over = world.memory.cool_downs["gpu"].until
    assert over == world.now + 300
    world.are(names(1, 40), DEAD, world.the(MarkDown)[0].why)
    world.jobs = {}
    world.reconcile(200)
    assert not world.plan.actions
    world.now = over
    world.reconcile(1)
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == 40  # healed
    world.are(names(1, 40), OFF)
    world.reconcile(60)
    world.starts(2, ["gpu-e2"], priority=10)
    world.starts(3, ["gpu-e3"], priority=20)
    world.reconcile(1)
    assert world.launched() == ["gpu-e3"]
    assert [delay.job for delay in world.the(Delay)] == ["2"]
    world.accepts("gpu-e3", state="RUNNING")
    world.are(["gpu-e2"], OFF)
    world.jobs.pop("2")
    world.reconcile(30)
    assert not world.memory.cool_downs
    world.starts(4, ["gpu-e4"])
    world.reconcile(1)
    assert world.launched() == ["gpu-e4"]


def test_scenario_04_a_cool_down_that_fails_again_is_longer() -> None:
    world = World(policy(gang_retry_window=0))
    lengths = []
    for number in (1, 2, 3):
        world.starts(number, ["gpu-e1"])
        world.reconcile()
        world.refuses("gpu-e1")
        world.reconcile(1)
        lengths.append(world.memory.cool_downs["gpu"].until - world.now)
        world.jobs.clear()
        world.are(["gpu-e1"], OFF)
        world.now = world.memory.cool_downs["gpu"].until + 1
        world.reconcile()
    assert lengths == [300, 600, 1200]


def test_scenario_05_a_throttled_launch_stays_in_flight_and_is_not_asked_for_again() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    calls = len(world.reconcile().actions)
    for _ in range(60):
        calls += len(world.reconcile(10).actions)
    assert calls == 16
    world.accepts(*gang)
    world.reconcile(1)
    assert world.plan.actions == ()


def test_scenario_06_a_limit_is_not_tried_again_for_ten_minutes() -> None:
    world = World(policy(limit_cool_down=600))
    attempts = []
    for number in range(1, 40):
        node = f"gpu-e{number}"
        world.starts(number, [node])
        world.reconcile(30)
        attempts += [world.now for _ in world.launched()]
        world.refuses(*world.launched(), fault=Fault.LIMIT, message=LIMIT)
        world.reconcile(1)
        assert world.the(PowerDown) or number > 1
        world.are([node], OFF)
        world.jobs.clear()
        world.reconcile(20)
    assert all(later - earlier >= 600 for earlier, later in itertools.pairwise(attempts))
    assert 2 <= len(attempts) <= 4


def test_scenario_06_a_limit_is_shown_on_the_job_and_at_last_it_is_held() -> None:
    world = World()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        world.starts(1, ["gpu-e1"])
        world.reconcile()
        assert world.launched() == ["gpu-e1"]
        world.refuses("gpu-e1", fault=Fault.LIMIT, message=LIMIT)
        world.reconcile(1)
        if attempt < MAX_ATTEMPTS:
            (delay,) = world.the(Delay)
            assert delay.until >= world.now + 600
            assert "limit or quota" in delay.why
            assert "gpu4-count" in delay.why
        world.are(names(1, 40), OFF)
        world.waits(1)
        world.now += 2000
    assert [hold.job for hold in world.the(Hold)] == ["1"]


def test_scenario_07_a_fault_of_configuration_opens_the_breaker_after_one_gang() -> None:
    world, gang = World(), names(1, 8)
    world.starts(1, gang, priority=2)
    world.reconcile()
    world.refuses(gang[0], fault=Fault.CONFIGURATION, message=BAD_IMAGE)
    world.reconcile(1)
    (hold,) = world.the(Hold)
    assert "imageId" in hold.why
    assert sorted(world.the(PowerDown)[0].nodes) == sorted(gang)
    # the launches that are still queued are not sent: their claims are no longer intended
    assert not any(claim.state == "intended" for claim in world.memory.claims.values())
    requeued(world, 1, gang, reason="JobHeldAdmin")
    world.starts(2, ["gpu-e9"])
    world.reconcile(1)
    assert not world.launched()
    assert "imageId" in world.the(Delay)[0].why
    lines = explain_job("1", world.observation(), world.memory, world.policy, world.now)
    assert any("imageId" in line for line in lines)


def test_scenario_08_a_launch_without_an_answer_is_taken_over_when_it_is_listed() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="timeout")
    world.instance("gpu-e1", "PROVISIONING", 1)
    world.reconcile(1)
    assert not world.plan.actions
    assert world.claim("gpu-e1").instance_id == "ocid.gpu-e1.1"
    assert world.claim("gpu-e1").token == first.token


def test_scenario_08_a_launch_without_an_answer_is_sent_again_with_the_same_token() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="timeout")
    world.reconcile(1)
    assert not world.launched()
    world.reconcile(15)
    (again,) = world.the(Launch)
    assert (again.token, again.generation) == (first.token, first.generation)
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="409 InvalidatedRetryToken: the token is used up")
    world.reconcile(1)
    (new,) = world.the(Launch)
    assert new.generation == 2
    assert new.token != first.token


@pytest.mark.parametrize("killed", ["before the call", "before the response", "after the response"])
def test_scenario_09_killed_at_any_line_there_is_one_instance_for_a_slot(killed: str) -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    assert world.memory.claims["gpu-e1"].token == first.token  # written down before the launch is sent
    world.in_flight.clear()
    if killed != "before the call":
        world.instance("gpu-e1", "PROVISIONING", 1)
    world.reconcile(2)
    if killed == "before the call":
        assert [launch.token for launch in world.the(Launch)] == [first.token]
    else:
        assert not world.launched()
        assert world.claim("gpu-e1").state == "launched"


def test_scenario_10_a_reboot_of_the_controller_amid_a_scale_up_loses_nothing() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang)
    world.outcomes.clear()  # the answers never reached us
    world.in_flight.clear()
    for name in gang:
        world.becomes(name, "RUNNING")
    world.reconcile(240)
    assert world.plan.actions == ()
    world.runs(*gang)
    world.jobs["1"] = job(1, gang, state="RUNNING")
    world.reconcile(10)
    assert world.plan.actions == ()
    assert {world.claim(name).state for name in gang} == {"up"}


def test_scenario_11_a_repeated_resume_launches_nothing_twice() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    seen: list[str] = []
    for _ in range(5):
        world.intents += [Intent("resume", world.now, tuple(gang), {"1": tuple(gang)})] * 2
        world.reconcile(2)
        seen += world.launched()
    assert sorted(seen) == gang


def test_scenario_12_without_slurm_nothing_is_done_and_afterwards_all_goes_on() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang[:2])
    world.serve("gpu-e9", words=IDLE)
    world.reconcile()
    world.accepts(*gang[:2])
    for _ in range(60):
        world.reconcile(10, nodes=None, jobs=None)
        assert world.plan.actions == ()
    assert "Slurm does not answer" in world.said()
    world.starts(2, gang[2:])
    world.reconcile(10)
    assert sorted(world.launched()) == gang[2:]
    assert not world.the(Terminate)


def test_scenario_13_a_look_without_slurms_answer_is_skipped() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile(jobs=None)
    assert world.plan.actions == ()
    world.reconcile(nodes=None)
    assert world.plan.actions == ()


def test_scenario_14_without_the_cloud_nothing_is_taken_down_ended_or_launched() -> None:
    world = World()
    world.serve(*names(1, 4))
    world.instance("gpu-e99")
    world.reconcile()
    world.starts(1, ["gpu-e6"])
    before = world.memory.claims
    for _ in range(180):
        world.reconcile(10, instances=None)
        assert world.plan.actions == ()
    assert world.memory.claims == before
    assert "the cloud does not answer" in world.said()
    world.reconcile(10)
    assert world.launched() == ["gpu-e6"]
    assert not world.the(PowerDown)


def test_scenario_15_a_listing_that_lags_is_not_believed() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    claim = world.claim("gpu-e1")
    world.outcomes.append(Outcome(claim.token, "gpu-e1", "ocid.gpu-e1.1"))
    world.in_flight.clear()
    for _ in range(6):
        world.reconcile(10)
        assert world.plan.actions == ()
    world.node("gpu-e1", BUSY)  # it may even register before it is listed
    world.reconcile(1)
    assert world.plan.actions == ()
    world.instance("gpu-e1", "RUNNING", 1)
    for generation in range(2, 5):  # and those long ended stay listed
        world.instance("gpu-e7", "TERMINATED", generation)
    world.reconcile(200)
    assert world.plan.actions == ()


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


def test_scenario_16_the_third_in_a_row_protects_the_pool() -> None:
    world, gang = World(), names(1, 3)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2)
    world.reconcile(700)
    assert len(world.the(SaveConsole)) == 3
    assert world.memory.cool_downs["gpu"].fault == Fault.BOOT
    assert sorted(world.the(PowerDown)[0].nodes) == gang
    assert "3 nodes in a row did not come into service" in world.the(Delay)[0].why
    assert world.the(Delay)[0].until > world.now + 3600
    world.jobs.clear()
    world.are(gang, OFF)
    world.starts(2, ["gpu-e9"])
    world.reconcile(10)
    assert not world.launched()


def test_scenario_16_a_node_that_registers_ends_the_row() -> None:
    world = World()
    for number in (1, 2, 3, 4):
        name = f"gpu-e{number}"
        world.starts(number, [name])
        world.reconcile()
        world.accepts(name, state="RUNNING")
        world.reconcile(1)
        if number == 2:
            world.runs(name)
        world.reconcile(700)
        world.instances.pop(f"ocid.{name}.1", None)
        world.jobs.clear()
        world.are(names(1, 40), OFF)
        world.reconcile(200)
    assert not world.memory.cool_downs
    assert world.memory.boot_failures == {"gpu": 2}


def _three_that_do_not_boot(world: World) -> list[str]:
    gang = names(1, 3)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2)
    return gang


def test_scenario_16_what_failed_while_the_autoscaler_was_away_is_not_the_pools_fault() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.now += 700
    back = world.now
    world.reconcile(1, looking_since=back)
    assert not world.the(SaveConsole), "each has its whole time again"
    world.reconcile(601, looking_since=back)
    assert len(world.the(SaveConsole)) == 3
    assert not world.memory.cool_downs
    assert not world.memory.boot_failures
    # Those that are asked for now count.
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.reconcile(5, looking_since=back)
    assert sorted(world.launched()) == gang
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2, looking_since=back)
    world.reconcile(700, looking_since=back)
    assert world.memory.cool_downs["gpu"].fault == Fault.BOOT


def test_scenario_16_nodes_that_slurm_gave_up_meanwhile_do_not_count_and_a_failed_check_does() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.jobs.clear()
    world.are(gang, "DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached")
    back = world.now + 300
    world.reconcile(301, looking_since=back)
    assert {world.claim(name).state for name in gang} == {"ending"}
    assert not world.memory.boot_failures
    world = World()
    _three_that_do_not_boot(world)
    reason = reasons.of_checks([("gpu_count", "7 of 8 GPUs")], again=False)
    world.reconcile(301, looking_since=back, unfit={"ocid.gpu-e1.1": reason})
    assert world.memory.boot_failures == {"gpu": 1}


def test_scenario_16_an_operator_who_has_fixed_the_cause_ends_the_cool_down_at_once() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.reconcile(700)
    assert world.memory.cool_downs
    world.are(gang, OFF)
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.waits(1, reason="BeginTime")
    world.reconcile(60)
    (line,) = (each for each in explain_job("1", world.observation(), world.memory, world.policy, world.now)
               if each.startswith("Pool gpu cools down until"))  # fmt: skip
    assert line.endswith("run: gpucluster autoscaler resume")
    world.memory = replace(world.memory, resumed_at=world.now)
    world.reconcile(1)
    assert not world.memory.cool_downs
    assert not world.memory.boot_failures
    (delay,) = world.the(Delay)
    assert (delay.job, delay.until) == ("1", world.now + 1)
    assert "an operator has" in world.said()
    world.starts(1, names(4, 6))
    world.reconcile(5)
    assert sorted(world.launched()) == names(4, 6)
    # A later one is a new one.
    world.accepts(*names(4, 6), state="RUNNING")
    world.reconcile(2)
    world.reconcile(700)
    assert world.memory.cool_downs


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


def test_scenario_16_that_slurm_gave_a_node_up_does_not_hide_why_its_instances_failed() -> None:
    """Three instances of a slow cloud may take longer than ResumeTimeout, which runs from the first one."""
    world = World()
    reason = reasons.of_checks([("mounts", "/mnt/home is not mounted")], again=False)
    why = "its checks at boot failed: mounts: /mnt/home is not mounted"
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    for generation in (1, 2):
        world.accepts("gpu-e1", state="RUNNING")
        world.reconcile(1)
        world.reconcile(100, unfit={f"ocid.gpu-e1.{generation}": reason})
        world.becomes("gpu-e1", "TERMINATED")
        world.reconcile(60)
        assert world.launched() == ["gpu-e1"]
        assert world.memory.boot_causes == {"gpu": f"gpu-e1: {why}"}
    world.accepts("gpu-e1", state="RUNNING")
    world.jobs.clear()
    world.node("gpu-e1", DEAD, "ResumeTimeout reached")
    world.reconcile(5)
    words = world.memory.cool_downs["gpu"].message
    assert words == (
        "3 nodes in a row did not come into service; gpu-e1: it did not register before Slurm's ResumeTimeout. "
        f"Before it, gpu-e1: {why}"
    )
    # Where an operator lets it continue, all of it is over.
    world.memory = replace(world.memory, resumed_at=world.now + 1)
    world.reconcile(2)
    assert not world.memory.boot_causes


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
