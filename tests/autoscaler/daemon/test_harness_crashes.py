"""Scenarios that affect all pools: the daemon, the controller, Slurm or the whole cloud fails while nodes power up.

One harness for all of them; each test has a pool of its own, leaves nothing behind and the daemon running. That there
was no instance too many is looked at again at the end, when each pool has come to rest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gpucluster.errors import LockedError
from gpucluster.localcloud import control
from tests.autoscaler.cluster_harness import CLUSTER, LAUNCH, ClusterHarness, HarnessPool
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

NAMES = ("q05", "q09a", "q09b", "q09c", "q09d", "q10", "q11", "q12", "q13", "q14", "q14b", "q15", "q40", "q43",
         "q46a", "q46b")  # fmt: skip
POOLS = tuple(HarnessPool(name, 16 if name == "q05" else 3) for name in NAMES)
NONSENSE = {
    "no record": 'echo "slurm_load_node: Zero Bytes"; exit 0',
    "nothing": "exit 0",
    "a long line": "head -c 50000 /dev/zero | tr '\\0' '='; exit 0",
    "a failure": "exit 1",
}


@pytest.fixture(scope="module")
def expected() -> dict[str, int]:
    """How many instances a pool has had in the end, by the tests that ran."""
    return {}


@pytest.fixture(scope="module")
def shared(expected: dict[str, int]) -> Iterator[ClusterHarness]:
    # No host fails here, so none is given up because this machine is slow.
    with ClusterHarness(POOLS, times={"join_deadline": 300.0}, slurm_harness={"resume_timeout": 600}) as harness:
        yield harness
        harness.none_left()
        assert {pool: made(harness, pool) for pool in expected} == expected
        assert "InvalidatedRetryToken" not in harness.calls(), "a token was used twice"


@pytest.fixture
def harness(shared: ClusterHarness) -> Iterator[ClusterHarness]:
    yield shared
    shared.faults([])
    shared.tools()
    if not shared.daemon_runs:
        shared.start_daemon()
    shared.slurm_harness.run("scancel", "--user=root", check=False)
    shared.others_untouched()


def made(harness: ClusterHarness, pool: str) -> int:
    """How many instances a pool has ever had."""
    tags = [one.freeform_tags for one in harness.all_instances()]
    return sum((one.get("gpucluster"), one.get("pool")) == (CLUSTER, pool) for one in tags)


def only_nodes_of_the_job(harness: ClusterHarness, count: int) -> None:
    """Wait until those of earlier tests are gone: each is terminated when it is idle, whatever a test looks at."""
    harness.until("the nodes of earlier tests are gone", lambda: len(harness.instances()) == count)


# --- the daemon is killed -----


@pytest.mark.parametrize(
    ("pool", "dies", "number"), [("q09a", "before", 2), ("q09b", "after", 2), ("q09c", "spool", 1)]
)
def test_scenario_09_the_daemon_is_killed_while_it_launches(
    harness: ClusterHarness, expected: dict[str, int], pool: str, dies: str, number: int
) -> None:
    harness.end_daemon()
    harness.start_daemon(dies=dies, number=number)
    job = harness.sbatch(pool, 3)
    harness.daemon_died()
    harness.start_daemon()
    harness.wait_state(job, "COMPLETED")
    assert made(harness, pool) == 3
    expected[pool] = 3
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


def test_scenario_09_the_daemon_is_killed_while_it_terminates(harness: ClusterHarness) -> None:
    job = harness.sbatch("q09d", 2, script=harness.gated("q09d"))
    harness.wait_state(job, "RUNNING")
    only_nodes_of_the_job(harness, 2)
    harness.end_daemon()
    harness.start_daemon(dies="terminate", number=1)
    # Not before: the daemon that was ended would have terminated them.
    harness.open("q09d")
    harness.daemon_died()
    harness.start_daemon()
    harness.none_left("q09d")
    assert made(harness, "q09d") == 2


def test_scenario_10_the_controller_reboots_while_nodes_come(harness: ClusterHarness, expected: dict[str, int]) -> None:
    with harness.hold_boots("q10"):
        job = harness.sbatch("q10", 3)
        harness.until("all are asked for", lambda: harness.calls("q10")["200"] == 3)
        harness.slurm_harness.saved(job, "q10-e1")
        harness.kill_daemon()
        harness.slurm_harness.stop("slurmctld")
    harness.slurm_harness.start_slurmctld()
    harness.start_daemon()
    harness.wait_state(job, "COMPLETED")
    assert made(harness, "q10") == 3
    expected["q10"] = 3


# --- Slurm fails -----


def test_scenario_11_slurmctld_is_killed_while_nodes_come(harness: ClusterHarness, expected: dict[str, int]) -> None:
    with harness.hold_boots("q11"):
        job = harness.sbatch("q11", 3)
        harness.until(
            "Slurm powers them up", lambda: sum("POWERING_UP" in f for f in harness.flags("q11").values()) == 3
        )
        harness.slurm_harness.saved(job, "q11-e1")
        harness.slurm_harness.restart_slurmctld()
    harness.wait_state(job, "COMPLETED")
    assert made(harness, "q11") == 3
    expected["q11"] = 3


def test_scenario_12_slurmctld_does_not_answer(harness: ClusterHarness) -> None:
    job = harness.sbatch("q12", 2, script=harness.gated("q12"))
    harness.wait_state(job, "RUNNING")
    only_nodes_of_the_job(harness, 2)
    before = harness.calls(operation="TerminateInstance").total()
    harness.slurm_harness.freeze("slurmctld")
    harness.until("a pass of the daemon ends without Slurm", lambda: harness.problem("slurm"))
    assert len(harness.instances("q12")) == 2
    assert harness.calls(operation="TerminateInstance").total() == before
    assert harness.daemon_runs
    harness.slurm_harness.thaw("slurmctld")
    harness.open("q12")
    harness.wait_state(job, "COMPLETED")
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


@pytest.mark.parametrize("kind", list(NONSENSE))
def test_scenario_13_slurms_commands_print_nonsense(harness: ClusterHarness, kind: str) -> None:
    gate = f"q13-{list(NONSENSE).index(kind)}"
    job = harness.sbatch("q13", 1, script=harness.gated(gate))
    harness.wait_state(job, "RUNNING")
    only_nodes_of_the_job(harness, 1)
    before = harness.calls(operation="TerminateInstance").total()
    harness.tools(scontrol=NONSENSE[kind], squeue=NONSENSE[kind])
    harness.passes()
    assert harness.daemon_runs
    assert harness.calls(operation="TerminateInstance").total() == before
    harness.tools()
    harness.open(gate)
    harness.wait_state(job, "COMPLETED")
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


# --- the cloud fails -----


def test_scenario_05_a_storm_of_throttling(harness: ClusterHarness, expected: dict[str, int]) -> None:
    """How many requests that takes at most is in test_executor, with a clock of its own."""
    # On a busy machine fewer requests than that come in a second: some are refused in any case.
    harness.faults([{"operation": LAUNCH, "status": 429, "times": 4}, {"operation": LAUNCH, "rate": 4}])
    job = harness.sbatch("q05", 16)
    harness.wait_state(job, "COMPLETED")
    calls = harness.calls("q05")
    assert calls["200"] == 16
    assert calls["TooManyRequests"] > 0
    assert made(harness, "q05") == 16, harness.story(400)
    expected["q05"] = 16
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


def test_scenario_14_the_cloud_is_down_while_a_job_runs_and_another_comes(
    harness: ClusterHarness, expected: dict[str, int]
) -> None:
    running = harness.sbatch("q14", 2, script=harness.gated("q14"))
    harness.wait_state(running, "RUNNING")
    pid = control.status(harness.home).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    waiting = harness.sbatch("q14b", 1)
    harness.until("its node powers up", lambda: any("POWERING_UP" in of for of in harness.flags("q14b").values()))
    harness.until("a pass of the daemon ends without the cloud", lambda: harness.problem("cloud"))
    harness.passes(3)
    assert harness.daemon_runs
    assert not any("DOWN" in of for of in (*harness.flags("q14").values(), *harness.flags("q14b").values()))
    assert harness.state(running) == "RUNNING"
    assert '"healthy": false' in harness.ask_daemon("status", "--output=json")
    control.start(harness.home, engine="process")
    harness.wait_state(waiting, "COMPLETED")
    harness.open("q14")
    harness.wait_state(running, "COMPLETED")
    assert harness.slurm_harness.job(running)["Restarts"] == "0"
    assert (made(harness, "q14"), made(harness, "q14b")) == (2, 1)
    expected.update(q14=2, q14b=1)


def test_scenario_15_the_listing_is_late(harness: ClusterHarness, expected: dict[str, int]) -> None:
    """The job runs before the listing has its nodes, and until it has them."""
    harness.faults([{"operation": "ListInstances", "stale_seconds": 4}])
    job = harness.sbatch("q15", 3, script=harness.gated("q15"))
    listed = {"RUNNING": 3}
    harness.passes(1)  # there is a status
    harness.until("the daemon has them", lambda: harness.status["pools"]["q15"]["instances"] == listed)
    harness.wait_state(job, "RUNNING")
    harness.passes()
    harness.open("q15")
    harness.wait_state(job, "COMPLETED")
    assert harness.calls("q15") == {"200": 3}
    assert harness.slurm_harness.job(job)["Restarts"] == "0"
    expected["q15"] = 3


def test_scenario_43_the_cloud_does_not_believe_us_for_a_moment(
    harness: ClusterHarness, expected: dict[str, int]
) -> None:
    harness.faults([{"operation": "*", "status": 401, "times": 6}])
    job = harness.sbatch("q43", 3)
    harness.wait_state(job, "COMPLETED")
    assert made(harness, "q43") == 3
    expected["q43"] = 3


# --- two daemons, no ledger -----


def test_scenario_40_a_second_daemon(harness: ClusterHarness, expected: dict[str, int]) -> None:
    job = harness.sbatch("q40", 3)
    second = harness.another_daemon()
    try:
        assert second.wait(timeout=PATIENCE_S) == LockedError.exit_code
    finally:
        second.kill()
    harness.wait_state(job, "COMPLETED")
    assert made(harness, "q40") == 3
    expected["q40"] = 3


@pytest.mark.parametrize(("pool", "how"), [("q46a", "lost"), ("q46b", "spoilt")])
def test_scenario_46_the_ledger_is_lost(harness: ClusterHarness, expected: dict[str, int], pool: str, how: str) -> None:
    job = harness.sbatch(pool, 2, script=harness.gated(pool))
    harness.until("both are asked for", lambda: made(harness, pool) == 2)
    harness.kill_daemon()
    for file in harness.slurm_harness.state.glob("ledger.sqlite*"):
        if how == "lost":
            file.unlink()
        else:
            file.write_bytes(b"no ledger")
    harness.start_daemon()
    harness.wait_state(job, "RUNNING")
    harness.open(pool)
    harness.wait_state(job, "COMPLETED")
    assert made(harness, pool) == 2
    expected[pool] = 2
