"""Scenarios that strike everybody: the daemon, the controller, Slurm or the whole cloud fails while nodes come.

One stage for all of them; each test has a pool of its own, leaves nothing behind and the daemon running.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from gpucluster.errors import LockedError
from gpucluster.localcloud import control
from tests.autoscaler.stage import CLUSTER, LAUNCH, Stage, StagePool

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

NAMES = ("q05", "q09a", "q09b", "q09c", "q09d", "q10", "q11", "q12", "q13", "q14", "q14b", "q15", "q40", "q43", "q46")
POOLS = tuple(StagePool(name, 16 if name == "q05" else 3) for name in NAMES)

# slurmctld writes down what it knows some seconds after it happened; a job that it lost is no matter of ours.
SAVED = 6
SLOW = [{"operation": "BootInstance", "delay": 9}]
NONSENSE = {
    "no record": 'echo "slurm_load_node: Zero Bytes"; exit 0',
    "nothing": "exit 0",
    "a long line": "head -c 50000 /dev/zero | tr '\\0' '='; exit 0",
    "a failure": "exit 1",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Stage]:
    with Stage(POOLS, arena={"resume_timeout": 60}) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    yield shared
    shared.faults([])
    shared.tools()
    if not shared.daemon_runs:
        shared.start_daemon()
    shared.arena.run("scancel", "--user=root", check=False)
    shared.others_untouched()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(shared: Stage) -> Iterator[None]:
    yield
    shared.none_left(seconds=60)
    assert "InvalidatedRetryToken" not in shared.calls(), "a token was used twice"


def made(stage: Stage, pool: str) -> int:
    """How many instances a pool has ever had."""
    tags = [one.freeform_tags for one in stage.all_instances()]
    return sum((one.get("gpucluster"), one.get("pool")) == (CLUSTER, pool) for one in tags)


# --- the daemon is killed -----


@pytest.mark.parametrize(
    ("pool", "dies", "number"), [("q09a", "before", 2), ("q09b", "after", 2), ("q09c", "spool", 1)]
)
def test_scenario_09_the_daemon_is_killed_while_it_launches(stage: Stage, pool: str, dies: str, number: int) -> None:
    stage.end_daemon()
    stage.start_daemon(dies=dies, number=number)
    job = stage.sbatch(pool, 3)
    stage.daemon_died()
    stage.start_daemon()
    stage.wait_state(job, "COMPLETED")
    assert made(stage, pool) == 3
    assert stage.arena.job(job)["Restarts"] == "0"


def test_scenario_09_the_daemon_is_killed_while_it_terminates(stage: Stage) -> None:
    job = stage.sbatch("q09d", 2)
    stage.wait_state(job, "RUNNING", "COMPLETED")
    stage.end_daemon()
    stage.start_daemon(dies="terminate", number=1)
    stage.daemon_died(30)
    stage.start_daemon()
    stage.none_left("q09d")
    assert made(stage, "q09d") == 2


def test_scenario_10_the_controller_reboots_while_nodes_come(stage: Stage) -> None:
    stage.faults(SLOW)
    job = stage.sbatch("q10", 3)
    stage.until("all are asked for", lambda: stage.calls("q10")["200"] == 3)
    time.sleep(SAVED)
    stage.kill_daemon()
    stage.arena.stop("slurmctld")
    time.sleep(2)
    stage.arena.start_slurmctld()
    stage.start_daemon()
    stage.wait_state(job, "COMPLETED", seconds=60)
    assert made(stage, "q10") == 3


# --- Slurm fails -----


def test_scenario_11_slurmctld_is_killed_while_nodes_come(stage: Stage) -> None:
    stage.faults(SLOW)
    job = stage.sbatch("q11", 3)
    stage.until("Slurm powers them up", lambda: sum("POWERING_UP" in of for of in stage.flags("q11").values()) == 3)
    time.sleep(SAVED)
    stage.arena.restart_slurmctld()
    stage.wait_state(job, "COMPLETED", seconds=60)
    assert made(stage, "q11") == 3


def test_scenario_12_slurmctld_does_not_answer(stage: Stage) -> None:
    job = stage.sbatch("q12", 2, script=stage.gated("q12"))
    stage.wait_state(job, "RUNNING")
    before = stage.calls(operation="TerminateInstance").total()
    stage.arena.freeze("slurmctld")
    time.sleep(10)
    assert len(stage.instances("q12")) == 2
    assert stage.calls(operation="TerminateInstance").total() == before
    assert stage.daemon_runs
    stage.arena.thaw("slurmctld")
    stage.open("q12")
    stage.wait_state(job, "COMPLETED")
    assert stage.arena.job(job)["Restarts"] == "0"
    stage.none_left("q12")


@pytest.mark.parametrize("kind", list(NONSENSE))
def test_scenario_13_slurms_commands_say_nonsense(stage: Stage, kind: str) -> None:
    gate = f"q13-{list(NONSENSE).index(kind)}"
    job = stage.sbatch("q13", 1, script=stage.gated(gate))
    stage.wait_state(job, "RUNNING")
    before = stage.calls(operation="TerminateInstance").total()
    stage.tools(scontrol=NONSENSE[kind], squeue=NONSENSE[kind])
    time.sleep(2.5)
    assert stage.daemon_runs
    assert stage.calls(operation="TerminateInstance").total() == before
    stage.tools()
    stage.open(gate)
    stage.wait_state(job, "COMPLETED")
    assert stage.arena.job(job)["Restarts"] == "0"


# --- the cloud fails -----


def test_scenario_05_a_storm_of_throttling(stage: Stage) -> None:
    stage.faults([{"operation": LAUNCH, "rate": 4}])
    job = stage.sbatch("q05", 16)
    stage.wait_state(job, "COMPLETED", seconds=60)
    calls = stage.calls("q05")
    assert calls["200"] == 16
    assert calls.total() <= 1.5 * 16, calls
    assert made(stage, "q05") == 16, stage.story(400)
    assert stage.arena.job(job)["Restarts"] == "0"


def test_scenario_14_the_cloud_is_down_while_a_job_runs_and_another_comes(stage: Stage) -> None:
    running = stage.sbatch("q14", 2, script=stage.gated("q14"))
    stage.wait_state(running, "RUNNING")
    pid = control.status(stage.home).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    waiting = stage.sbatch("q14b", 1)
    time.sleep(8)
    assert stage.daemon_runs
    assert not any("DOWN" in of for of in (*stage.flags("q14").values(), *stage.flags("q14b").values()))
    assert stage.state(running) == "RUNNING"
    assert '"healthy": false' in stage.ask_daemon("status", "--output=json")
    control.start(stage.home, engine="process")
    stage.wait_state(waiting, "COMPLETED", seconds=60)
    stage.open("q14")
    stage.wait_state(running, "COMPLETED")
    assert stage.arena.job(running)["Restarts"] == "0"
    assert (made(stage, "q14"), made(stage, "q14b")) == (2, 1)


def test_scenario_15_the_listing_is_late(stage: Stage) -> None:
    stage.faults([{"operation": "ListInstances", "stale_seconds": 4}])
    job = stage.sbatch("q15", 3, script="sleep 3")
    stage.wait_state(job, "COMPLETED")
    assert stage.calls("q15") == {"200": 3}
    assert stage.arena.job(job)["Restarts"] == "0"
    stage.faults([])
    stage.none_left("q15")
    assert made(stage, "q15") == 3


def test_scenario_43_the_cloud_does_not_believe_us_for_a_moment(stage: Stage) -> None:
    stage.faults([{"operation": "*", "status": 401, "times": 6}])
    job = stage.sbatch("q43", 3)
    stage.wait_state(job, "COMPLETED")
    assert made(stage, "q43") == 3


# --- two daemons, no ledger -----


def test_scenario_40_a_second_daemon(stage: Stage) -> None:
    job = stage.sbatch("q40", 3)
    second = stage.another_daemon()
    try:
        assert second.wait(timeout=15) == LockedError.exit_code
    finally:
        second.kill()
    stage.wait_state(job, "COMPLETED")
    assert made(stage, "q40") == 3


@pytest.mark.parametrize("how", ["lost", "spoilt"])
def test_scenario_46_the_ledger_is_lost(stage: Stage, how: str) -> None:
    before = made(stage, "q46")
    job = stage.sbatch("q46", 2, script=stage.gated(f"q46-{how}"))
    stage.until("both are asked for", lambda: made(stage, "q46") == before + 2)
    stage.kill_daemon()
    for file in stage.arena.state.glob("ledger.sqlite*"):
        if how == "lost":
            file.unlink()
        else:
            file.write_bytes(b"no ledger")
    stage.start_daemon()
    stage.wait_state(job, "RUNNING")
    stage.open(f"q46-{how}")
    stage.wait_state(job, "COMPLETED")
    stage.none_left("q46")
    assert made(stage, "q46") == before + 2
