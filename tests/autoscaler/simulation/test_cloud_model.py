"""The model of the cloud: what it answers to launches, how instances live and end, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.autoscaler.decide.types import Fault, Launch
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.cloud_model import CloudModel, CloudSettings, FaultRates
from gpucluster.oci.states import LifecycleState

#: An instance boots in 100 seconds, and is listed at once.
STEADY: dict[str, Any] = {"boot_seconds": 100.0, "boot_spread": 0.0, "listing_lag": 0.0, "terminate_seconds": 10.0}


def model(rates: FaultRates | None = None, joins: frozenset[str] = frozenset(), **settings: Any) -> CloudModel:
    return CloudModel(Clock(), CloudSettings(**{**STEADY, **settings}), rates or FaultRates(), 7, joins=joins)


def launch(node: str = "gpu-e1", generation: int = 1) -> Launch:
    return Launch(node, "gpu", generation, f"{node}/{generation}", "why")


def states(cloud: CloudModel) -> dict[str, str]:
    return {instance.node: str(instance.state) for instance in cloud.listing.values()}


def test_an_instance_runs_and_its_slurmd_registers() -> None:
    cloud, registered = model(), list[tuple[float, str]]()
    cloud.register = lambda node, _instance: registered.append((cloud.clock.now, node))
    assert cloud.launch(launch()).instance_id == "instance-1"
    cloud.clock.run_until(1)
    assert states(cloud) == {"gpu-e1": LifecycleState.PROVISIONING}
    cloud.clock.run_until(99)
    assert (states(cloud), registered) == ({"gpu-e1": LifecycleState.RUNNING}, [])
    cloud.clock.run_until(101)
    assert registered == [(100.0, "gpu-e1")]


def test_an_instance_without_a_baked_image_registers_when_it_is_configured() -> None:
    cloud, registered = model(joins=frozenset({"gpu"})), list[str]()
    cloud.register = lambda node, _instance: registered.append(node)
    answer = cloud.launch(launch())
    cloud.clock.run_until(1000)
    assert registered == []
    cloud.join(answer.instance_id)
    assert registered == ["gpu-e1"]


def test_the_same_token_is_the_same_instance_and_invalid_once_that_is_gone() -> None:
    cloud = model()
    first = cloud.launch(launch())
    assert cloud.launch(launch()) == first
    cloud.terminate(first.instance_id)
    again = cloud.launch(launch())
    assert (again.fault, again.message) == (Fault.TRANSIENT, "409 InvalidatedRetryToken")
    assert cloud.accepted == 1


def test_a_name_is_free_when_its_instance_is_gone() -> None:
    cloud = model()
    cloud.terminate(cloud.launch(launch()).instance_id)
    assert cloud.launch(launch(generation=2)).message == "409 Conflict: the host name is taken"
    cloud.clock.run_until(11)
    assert cloud.launch(launch(generation=2)).instance_id == "instance-2"
    # Without unique names there are two of them.
    other = model(names_are_unique=False)
    assert [other.launch(launch(generation=number)).instance_id for number in (1, 2)] == ["instance-1", "instance-2"]
    assert other.faults == {"name_taken": 1}


def test_a_pool_has_room_for_so_many() -> None:
    cloud = model(hosts=1)
    first = cloud.launch(launch("gpu-e1"))
    assert cloud.launch(launch("gpu-e2")).fault is Fault.CAPACITY
    cloud.terminate(first.instance_id)
    cloud.clock.run_until(11)
    assert cloud.launch(launch("gpu-e3")).fault is None


def test_calls_above_the_rate_are_throttled() -> None:
    cloud = model(calls_per_second=3.0)
    throttled = [cloud.launch(launch(f"gpu-e{number}")).throttled for number in range(5)]
    assert throttled == [False, False, False, True, True]
    cloud.clock.run_until(0.4)
    assert not cloud.launch(launch("gpu-e9")).throttled


@pytest.mark.parametrize(
    ("fault", "kind", "accepted"),
    [
        ("capacity", Fault.CAPACITY, 0),
        ("limit", Fault.LIMIT, 0),
        ("configuration", Fault.CONFIGURATION, 0),
        ("unknown_lost", Fault.TRANSIENT, 0),
        ("unknown_done", Fault.TRANSIENT, 1),
        ("duplicate", None, 2),
    ],
)
def test_each_fault_has_its_answer(fault: str, kind: Fault | None, accepted: int) -> None:
    cloud = model(FaultRates(**{fault: 1.0}))
    assert cloud.launch(launch()).fault is kind
    assert (cloud.accepted, cloud.faults) == (accepted, {fault: 1})


def test_a_host_that_was_promised_and_is_not_there() -> None:
    cloud, late = model(FaultRates(late_capacity=1.0)), list[str]()
    cloud.failed_late = lambda instance: late.append(instance.node)
    cloud.launch(launch())
    cloud.clock.run_until(1000)
    assert (late, states(cloud), cloud.alive) == (["gpu-e1"], {"gpu-e1": LifecycleState.TERMINATED}, {})


@pytest.mark.parametrize(("rate", "at"), [("dead_boot", None), ("slow_boot", 2100.0)])
def test_a_slurmd_that_registers_late_or_never(rate: str, at: float | None) -> None:
    cloud, registered = model(FaultRates(**{rate: 1.0})), list[float]()
    cloud.register = lambda _node, _instance: registered.append(cloud.clock.now)
    cloud.launch(launch())
    cloud.clock.run_until(10_000)
    assert registered == ([] if at is None else [at])


@pytest.mark.parametrize(
    ("rate", "state", "billed"),
    [("lost", LifecycleState.TERMINATED, False), ("stopped", LifecycleState.STOPPED, True)],
)
def test_an_instance_that_ends_or_stops_later_loses_its_node(rate: str, state: LifecycleState, billed: bool) -> None:
    cloud, lost = model(FaultRates(**{rate: 1.0}), record_seconds=1e9), list[str]()
    cloud.lost = lambda node, _instance: lost.append(node)
    answer = cloud.launch(launch())
    cloud.clock.run_until(100 + 4 * 3600 + 20)
    instance = cloud.instances[answer.instance_id]
    assert (lost, instance.state, instance.billed) == (["gpu-e1"], state, billed)


def test_a_listing_that_lags_never_goes_back() -> None:
    cloud = model(listing_lag=1000.0)
    cloud.launch(launch())
    order = [getattr(LifecycleState, name) for name in ("PROVISIONING", "RUNNING", "TERMINATING", "TERMINATED")]
    seen: list[str] = []
    cloud.changed = lambda: seen.append(next(iter(cloud.listing.values())).state)
    cloud.clock.run_until(50)
    cloud.terminate("instance-1")
    cloud.clock.run_until(5000)
    assert seen[-1] == LifecycleState.TERMINATED
    assert seen == sorted(seen, key=order.index)


def test_a_terminated_instance_is_forgotten_in_the_end() -> None:
    cloud = model(record_seconds=60.0)
    cloud.terminate(cloud.launch(launch()).instance_id)
    cloud.clock.run_until(11)
    assert states(cloud) == {"gpu-e1": LifecycleState.TERMINATED}
    cloud.clock.run_until(71)
    assert (cloud.listing, cloud.instances, cloud.by_token) == ({}, {}, {})


def test_seconds_are_counted_by_what_an_instance_did() -> None:
    cloud = model()
    answer = cloud.launch(launch())
    for until, category in ((100, "busy"), (160, "idle"), (170, "booting")):
        cloud.clock.run_until(until)
        cloud.categorize(answer.instance_id, category)
    cloud.terminate(answer.instance_id)
    cloud.clock.run_until(500)
    cloud.settle()
    assert cloud.seconds == {"booting": 100.0, "busy": 60.0, "idle": 10.0}
    assert cloud.seconds_of_pool == {"gpu": 170.0}


def test_every_fault_at_one_rate_leaves_out_those_of_the_configuration() -> None:
    rates = FaultRates.every(0.5)
    assert (rates.limit, rates.configuration) == (0.0, 0.0)
    assert (rates.capacity, rates.throttle, rates.duplicate) == (0.5, 0.5, 0.5)
