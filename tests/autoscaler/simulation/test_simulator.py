"""Whole traces in the simulation."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.simulation.simulator import simple_policy, simulate, with_nodes
from gpucluster.autoscaler.simulation.traces import Trace, TraceJob


def busy_day(jobs: int = 60) -> Trace:
    return Trace(tuple(TraceJob(index * 900.0, 1 + index % 3, 600.0, 1200.0) for index in range(jobs)))


def test_a_longer_idle_time_waits_less_and_costs_more() -> None:
    short, long = (simulate(busy_day(), simple_policy(8, price=2.0), idle_timeout=idle) for idle in (60, 1800))
    assert short.jobs_done == long.jobs_done == 60
    assert short.waiting.mean > 2 * long.waiting.mean
    assert short.node_hours.idle < long.node_hours.idle / 2
    assert short.launches > long.launches
    assert short.node_hours.busy == pytest.approx(long.node_hours.busy)
    assert short.cost == pytest.approx(2.0 * short.node_hours.total)


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, same, other = (simulate(busy_day(), simple_policy(4), seed=seed, fault_rate=0.1) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one.jobs_done == 60


def test_what_never_runs_is_told_and_ends_the_simulation() -> None:
    trace = Trace((TraceJob(0, 9, 60, 60), TraceJob(1, 2, 60, 60), TraceJob(2, 1, 60, 60, partition="other")))
    report = simulate(trace, simple_policy(8, price=10.0, max_cost_per_hour=15.0))
    assert (report.jobs_rejected, report.jobs_unfinished, report.jobs_held) == (1, 1, 1)
    assert (report.jobs_done, report.jobs_moved) == (1, 1)


def test_more_nodes_in_each_pool() -> None:
    policy = with_nodes(simple_policy(4), 100)
    assert policy.pools["compute"].max_nodes == 100
    assert policy.pools["compute"].names >= 200
