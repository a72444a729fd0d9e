"""The simulation: its models behave as measured, its report adds up, its command reports what is wrong.

Doubles: the models of Slurm and the cloud. What they prove is written in their modules.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.autoscaler.decide.types import Intent
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.command import add_arguments, run
from gpucluster.autoscaler.simulation.engine import SimulatedCluster
from gpucluster.autoscaler.simulation.report import WaitingTimes, duration
from gpucluster.autoscaler.simulation.simulator import simple_policy, simulate, with_nodes
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, SlurmModel, SlurmSettings
from gpucluster.autoscaler.simulation.traces import Trace, TraceJob
from gpucluster.errors import InputError

TRACES = Path(__file__).parent / "traces"


def arguments(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


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


# --- the report -----


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


def test_waiting_times() -> None:
    assert WaitingTimes.of([]) == WaitingTimes(0, 0, 0, 0)
    assert WaitingTimes.of([float(second) for second in range(1, 101)]) == WaitingTimes(50.5, 50, 95, 100)


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (60, "1:00 min"), (3599.6, "1:00 h"), (11_100, "3:05 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- the command -----


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = [TRACES / "two_days.sacct", "--nodes", "4", "8", "--idle-timeout", "60", "600", "--price", "3"]
    assert run(arguments(*words)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7 jobs; 3 lines without a job that ran"
    assert lines[1].startswith("policy")
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "4 nodes, idle 60 s",
        "4 nodes, idle 600 s",
        "8 nodes, idle 60 s",
        "8 nodes, idle 600 s",
    ]
    assert "7 jobs name a partition that the policy lacks" in lines[6]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [TRACES / "small.swf", "--format", "swf", "--processors-per-node", "4", "--nodes", "8", "--output", "json"]
    assert run(arguments(*words)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trace"] == {"jobs": 3, "left_out": 1}
    (result,) = document["results"]
    assert result["jobs_done"] == 3
    assert result["cost"] is None
    assert 0 < result["idle_share"] < 1


def test_a_policy_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = {
        "partition": "gpu",
        "prefix": "a-e",
        "names": 10,
        "max_nodes": 4,
        "shape": "BM.GPU4.8",
        "baked": False,
        "availability_domain": "AD-1",
        "instance_configuration_id": "x",
        "compute_cluster_id": None,
    }
    policy = {
        "version": 1,
        "cluster": "c",
        "compartment_id": "x",
        "region": "x",
        "prices": {"BM.GPU4.8": 24.4},
        "authentication": {"method": "instance_principal"},
        "pools": {"a": pool},
    }
    file = tmp_path / "autoscaler.json"
    file.write_text(json.dumps(policy))
    assert run(arguments(TRACES / "two_days.sacct", "--policy", file, "--output", "json")) == 0
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert result["jobs_moved"] == 1  # partition debug
    assert result["cost"] == pytest.approx(24.4 * sum(result["node_hours"].values()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.txt", "--nodes", "4"], "No such file"),
        ([TRACES / "small.swf", "--nodes", "4"], "not the output of sacct"),
        ([TRACES / "two_days.sacct"], "the number of nodes is missing"),
        ([TRACES / "two_days.sacct", "--policy", "none.json"], "can't read the policy"),
    ],
)
def test_wrong_input_is_told(words: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(arguments(*words))


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--idle-timeout", "-1"], ["--boot-seconds", "nan"]])
def test_wrong_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("trace", *words)


def test_more_nodes_in_each_pool() -> None:
    policy = with_nodes(simple_policy(4), 100)
    assert policy.pools["compute"].max_nodes == 100
    assert policy.pools["compute"].names >= 200


def test_neither_oci_nor_a_cluster_is_needed() -> None:
    blocked = "import sys; sys.modules['oci'] = None; sys.modules['click'] = None; "
    words = blocked + "import gpucluster.autoscaler.simulation.command"
    subprocess.run([sys.executable, "-c", words], check=True)
