"""The model of Slurm behaves as measured.

Doubles: the model of Slurm. What they prove is written in their modules.
"""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.types import Intent
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, SlurmModel, SlurmSettings

# --- the model of Slurm, against what was measured with the real one -----


class Slurm:
    """The model with a hook that keeps its calls."""

    def __init__(self, **settings: float) -> None:
        self.clock = Clock()
        self.hooks: list[Intent] = []
        self.model = SlurmModel(self.clock, SlurmSettings(**settings), self.hooks.append)  # type: ignore[arg-type]
        self.model.add_pool("a", "a", [f"a-e{number}" for number in range(1, 5)], rdma=True, max_nodes=4)

    def submit(self, nodes: int, seconds: float = 60.0) -> ModelJob:
        number = len(self.model.jobs) + 1
        job = ModelJob(number, nodes, seconds, seconds * 2, "a", self.clock.now)
        assert self.model.submit(job)
        return job

    def flags(self, name: str) -> set[str]:
        return set(self.model.node_views[name].flags)

    def advance(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


def test_a_job_is_given_its_names_at_once_and_starts_with_the_last_of_them() -> None:
    slurm = Slurm()
    job = slurm.submit(2)
    slurm.advance(5)
    assert job.state == "CONFIGURING"
    assert slurm.flags("a-e1") == {"CLOUD", "ALLOCATED", "POWERING_UP", "NOT_RESPONDING"}
    (hook,) = slurm.hooks
    assert (hook.kind, hook.nodes, hook.jobs) == ("resume", ("a-e1", "a-e2"), {"1": ("a-e1", "a-e2")})
    assert slurm.model.register("a-e1", "i1")
    assert job.state == "CONFIGURING"
    assert slurm.model.register("a-e2", "i2")
    assert job.state == "RUNNING"
    slurm.advance(60)
    assert job.state == "COMPLETED"
    assert slurm.flags("a-e1") == {"CLOUD", "IDLE"}


def test_resume_timeout_requeues_the_job_and_nothing_heals_the_node() -> None:
    slurm = Slurm(resume_timeout=100)
    job = slurm.submit(2)
    slurm.advance(50)
    slurm.model.register("a-e2", "i2")
    slurm.advance(60)
    assert {"DOWN", "POWERED_DOWN"} <= slurm.flags("a-e1")
    assert slurm.flags("a-e2") == {"CLOUD", "IDLE"}, "its sibling stays"
    assert [hook.kind for hook in slurm.hooks] == ["resume", "resume_fail"]
    assert (job.state, job.restarts) == ("PENDING", 1)
    assert job.eligible_at == pytest.approx(101 + 31)
    slurm.advance(100)
    assert {"DOWN", "POWERED_DOWN"} <= slurm.flags("a-e1")
    slurm.model.power_down_force(["a-e1"])
    assert slurm.flags("a-e1") == {"CLOUD", "IDLE", "POWERING_DOWN"}
    slurm.advance(121)
    assert slurm.flags("a-e1") == {"CLOUD", "IDLE", "POWERED_DOWN"}


def test_a_late_boot_comes_back_to_service_but_not_while_it_powers_down() -> None:
    slurm = Slurm(resume_timeout=100)
    slurm.submit(1)
    slurm.advance(105)
    assert slurm.model.register("a-e1", "i1"), "ReturnToService=2"
    assert slurm.flags("a-e1") <= {"CLOUD", "IDLE", "ALLOCATED"}
    slurm.model.power_down_force(["a-e1"])
    assert not slurm.model.register("a-e1", "i1")


def test_cancelling_stops_no_boot_and_the_next_job_takes_the_node() -> None:
    slurm = Slurm()
    first = slurm.submit(1)
    slurm.advance(5)
    slurm.model.cancel(first.number)
    assert slurm.flags("a-e1") == {"CLOUD", "IDLE", "POWERING_UP", "NOT_RESPONDING"}
    second = slurm.submit(1)
    slurm.advance(5)
    assert [node.name for node in second.nodes] == ["a-e1"]


def test_one_node_down_requeues_the_whole_job() -> None:
    slurm = Slurm()
    job = slurm.submit(2)
    slurm.advance(5)
    slurm.model.mark_down("a-e1", "gpucluster: no capacity")
    assert job.state == "PENDING"
    assert slurm.flags("a-e2") == {"CLOUD", "IDLE", "POWERING_UP", "NOT_RESPONDING"}


def test_an_idle_node_is_given_up_and_a_lost_one_goes_down() -> None:
    slurm = Slurm(idle_timeout=600)
    job = slurm.submit(2, seconds=5000)
    slurm.advance(5)
    slurm.model.register("a-e1", "i1")
    slurm.model.register("a-e2", "i2")
    slurm.advance(10)
    slurm.model.lost("a-e1", "i1")
    slurm.advance(299)
    assert "NOT_RESPONDING" in slurm.flags("a-e1")
    assert job.state == "RUNNING"
    slurm.advance(2)
    assert "DOWN" in slurm.flags("a-e1")
    assert job.state == "PENDING"
    slurm.model.cancel(job.number)
    slurm.advance(601)
    assert "POWERING_DOWN" in slurm.flags("a-e2")
    assert slurm.hooks[-1].kind == "suspend"


def test_small_jobs_fill_gaps_and_the_first_one_waits_no_longer_for_it() -> None:
    slurm = Slurm()
    slurm.submit(3, seconds=1000)
    slurm.advance(5)
    for name in ("a-e1", "a-e2", "a-e3"):
        slurm.model.register(name, name)
    wide, short, long = slurm.submit(4), slurm.submit(1, seconds=100), slurm.submit(1, seconds=9000)
    slurm.advance(5)
    assert [job.state for job in (wide, short, long)] == ["PENDING", "CONFIGURING", "PENDING"]


def test_the_cap_on_powered_nodes() -> None:
    slurm = Slurm(max_powered_nodes=2)
    first, second = slurm.submit(2), slurm.submit(1)
    slurm.advance(5)
    assert (first.state, second.state) == ("CONFIGURING", "PENDING")


# --- the model of the cloud, and the loop -----


# --- the report -----


# --- the command -----
