"""Scenarios 33 and 34: whole gangs are admitted or refused by limits. See scenario_steps for the method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.explain import explain_job
from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    Hold,
    PowerDown,
)
from gpucluster.autoscaler.policy import Budgets, PolicyLimits
from tests.autoscaler.builders import (
    LEAVING,
    OFF,
    World,
    names,
    policy,
    pool,
)

PRICES = {"BM.GPU4.8": 10.0}


@pytest.mark.parametrize(
    ("limits", "prices", "words"),
    [
        (PolicyLimits(max_nodes=10), {}, "max_nodes"),
        (PolicyLimits(max_cost_per_hour=100.0), PRICES, "max_cost_per_hour"),
        (PolicyLimits(max_launches_per_hour=10), {}, "max_launches_per_hour"),
    ],
)
def test_scenario_33_whole_gangs_are_admitted_or_refused_by_priority(
    limits: PolicyLimits, prices: dict[str, float], words: str
) -> None:
    world = World(policy(limits=limits, prices=prices))
    world.starts(1, names(1, 6), priority=1)
    world.starts(2, names(7, 12), priority=2)
    world.starts(3, names(13, 16), priority=1)
    world.reconcile()
    assert sorted(world.launched()) == sorted([*names(7, 12), *names(13, 16)])
    assert [each.nodes for each in world.the(PowerDown)] == [tuple(names(1, 6))]
    (delay,) = world.the(Delay)
    assert delay.job == "1"
    assert words in delay.why
    assert world.now < delay.until <= world.now + 3601
    # it comes again when there is room
    world.are(names(1, 6), LEAVING)
    world.waits(1)
    world.reconcile(200)
    world.are(names(1, 40), OFF)
    world.jobs.clear()
    world.in_flight.clear()
    world.reconcile(200)
    world.reconcile(3700)
    world.starts(1, names(1, 6))
    world.reconcile(1)
    assert sorted(world.launched()) == names(1, 6)


@pytest.mark.parametrize(("factor", "launched"), [(1.0, 0), (0.5, 4)])
def test_nodes_of_a_preemptible_pool_count_with_their_own_price(factor: float, launched: int) -> None:
    cheap = pool(preemptible=True, price_factor=factor)
    world = World(policy(cheap, limits=PolicyLimits(max_cost_per_hour=25.0), prices=PRICES))
    world.starts(1, names(1, 4))
    world.reconcile()
    assert len(world.launched()) == launched


def test_scenario_33_a_pool_has_its_own_limit_and_a_shape_without_a_price_no_cap() -> None:
    world = World(policy(pool(max_nodes=4), limits=PolicyLimits(max_cost_per_hour=1.0), prices={"other": 9.0}))
    world.starts(1, names(1, 3))
    world.reconcile()
    assert len(world.launched()) == 3
    world.starts(2, names(4, 5))
    world.reconcile(1)
    assert not world.launched()
    assert "pool gpu has 3 of 4" in world.the(Delay)[0].why


def test_scenario_33_a_job_that_slurm_would_not_requeue_keeps_its_place() -> None:
    world = World(policy(pool(max_nodes=4)))
    world.starts(1, names(1, 4))
    world.reconcile()
    world.starts(2, names(5, 6), requeue=False)
    world.reconcile(1)
    assert [tell.job for tell in world.the(Annotate)] == ["2"]
    world.reconcile(1)
    assert world.plan.actions == ()
    world.jobs.pop("1")
    world.are(names(1, 4), LEAVING)
    world.in_flight.clear()
    world.reconcile(1)
    assert sorted(world.launched()) == names(5, 6)


def test_scenario_33_launches_that_failed_do_not_count_against_the_hour() -> None:
    world = World(policy(limits=PolicyLimits(max_launches_per_hour=4), gang_retry_window=0))
    world.starts(1, names(1, 4))
    world.reconcile()
    before = world.memory
    assert len(before.launched_at) == 4
    world.refuses(*names(1, 4))
    world.reconcile(1)
    assert world.memory.launched_at == ()


def test_scenario_33_slurms_own_limit_is_understood() -> None:
    world = World()
    world.waits(1, reason="MaxPoweredUpNodes")
    lines = explain_job("1", world.observation(), world.memory, world.policy, world.now)
    assert any("max_nodes" in line for line in lines)


@pytest.mark.parametrize(
    "limits",
    [PolicyLimits(max_nodes=3), PolicyLimits(max_launches_per_hour=3), PolicyLimits(max_cost_per_hour=30.0)],
)
def test_scenario_34_a_job_that_can_never_fit_is_held_and_launches_nothing(limits: PolicyLimits) -> None:
    world = World(policy(limits=limits, prices=PRICES))
    world.starts(1, names(1, 4))
    world.reconcile()
    assert not world.launched()
    assert [hold.job for hold in world.the(Hold)] == ["1"]
    assert world.the(PowerDown)
    world = World(policy(pool(max_nodes=3)))
    world.starts(1, names(1, 4))
    world.reconcile()
    assert "pool gpu may have 3" in world.the(Hold)[0].why


BUDGETS = Budgets({"science": 100.0}, {"vision": "science", "science": "root"}, {}, "USD", "UTC")


def test_an_account_whose_budget_is_spent_gets_no_new_nodes_and_keeps_what_it_has() -> None:
    world = World(replace(policy(), budgets=BUDGETS))
    world.starts(1, names(1, 2), account="vision")
    world.reconcile(spent={"science": 99.99})
    assert sorted(world.launched()) == names(1, 2)
    # The budget is spent: what was admitted goes on, another job of the account waits, those of others start.
    world.accepts(*names(1, 2), state="RUNNING")
    world.starts(2, names(3, 4), account="vision")
    world.starts(3, names(5, 6), account="speech")
    world.starts(4, names(7, 7))
    world.reconcile(1, spent={"science": 100.0})
    assert sorted(world.launched()) == names(5, 7)
    (delay,) = world.the(Delay)
    assert delay.job == "2"
    assert "the account science has spent its budget of this month, 100.00 USD, and gets no new nodes" in delay.why
    assert [each.nodes for each in world.the(PowerDown)] == [tuple(names(3, 4))]
    seen = world.observation(spent={"science": 100.0})
    assert any("has spent its budget" in line for line in explain_job("2", seen, world.memory, world.policy, world.now))
    # Within minutes it is tried again, not at the end of the month: the budget may be raised.
    assert delay.until - world.now < 600


def test_without_an_answer_of_the_accounting_an_account_with_a_budget_waits() -> None:
    world = World(replace(policy(), budgets=BUDGETS))
    world.starts(1, names(1, 2), account="vision")
    world.starts(2, names(3, 4), account="speech")
    world.reconcile(spent=None)
    assert sorted(world.launched()) == names(3, 4)
    assert "is not known yet" in world.the(Delay)[0].why


def test_a_budget_holds_no_job_that_needs_no_new_node() -> None:
    world = World(policy())
    world.starts(1, names(1, 2), account="vision")
    world.reconcile()
    world.accepts(*names(1, 2), state="RUNNING")
    world.policy = replace(world.policy, budgets=BUDGETS)
    world.reconcile(1, spent={"science": 500.0})
    assert not world.the(Delay)
    assert not world.the(PowerDown)
