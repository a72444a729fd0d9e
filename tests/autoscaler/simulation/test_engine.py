"""The daemon's own loop in the simulation: from a submission to an empty cloud, throttled and killed."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.engine import SimulatedCluster
from gpucluster.autoscaler.simulation.simulator import simple_policy
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, SlurmSettings


def one_job(rates: FaultRates | None = None, **cloud: float) -> SimulatedCluster:
    world = SimulatedCluster(simple_policy(4), SlurmSettings(), CloudSettings(**cloud), rates or FaultRates())  # type: ignore[arg-type]
    world.slurm.submit(ModelJob(1, 2, 600, 1200, "compute", 0.0))
    return world


def test_one_job_from_submission_to_an_empty_cloud() -> None:
    world = one_job(boot_seconds=300, boot_spread=0)
    world.clock.run_until(5000)
    assert not world.slurm.jobs
    assert not world.cloud.alive
    assert world.cloud.accepted == world.executor.sent == 2
    assert world.memory.claims == {}
    world.cloud.settle()
    assert world.cloud.seconds["busy"] == pytest.approx(2 * 600)
    assert world.cloud.seconds["booting"] == pytest.approx(2 * 300, abs=2)
    assert world.cloud.seconds["idle"] == pytest.approx(2 * 600, abs=10)
    passes = world.passes
    world.clock.run_until(500_000)
    assert world.passes <= passes + 5, "nothing happens, so there are no passes"


def test_throttling_slows_down_and_fails_nothing() -> None:
    world = one_job(FaultRates(throttle=0.9))
    world.clock.run_until(1200)
    assert not world.slurm.jobs
    assert world.cloud.accepted == 2
    assert world.executor.throttled > 0


def test_a_killed_daemon_launches_nothing_twice() -> None:
    for moment in (3.0, 3.1, 3.3, 4.0, 5.5, 6.0, 30.0, 200.0):
        world = one_job()
        world.clock.run_until(moment)
        world.crash()
        world.clock.run_until(1200)
        assert (moment, world.cloud.accepted) == (moment, 2)
        assert not world.slurm.jobs
