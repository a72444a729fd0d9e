"""Measuring by jobs of a real Slurm: planted faults are found, and bad luck ends with an answer and without jobs.

Slurm, its jobs and the program on the controller are real. nccl-tests is a double (tests/doubles/nccl_tests), and each
node is the same machine.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process, shapes
from gpucluster.controller.measure.result import MOST_OUTPUT
from gpucluster.errors import LockedError
from gpucluster.events import Event
from gpucluster.measuring import plan, results
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement, Status
from gpucluster.operations.measuring import RemoteSession
from tests.agent_program import install
from tests.autoscaler.slurm_harness import HOOKS, SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

NODES = tuple(f"gpu-{number}" for number in range(1, 6))
SHAPE = shapes.get("BM.GPU.GB200.4")
POOL = MeasuredPool("gpu", "gpu", SHAPE, rdma=True, nodes=len(NODES))
TOOLS = Tools(program=str(HOOKS / "all_reduce_perf"))
AGENT = ("python3", "-I", str(HOOKS / "gpucluster-agent"), "measure", "serve")
DOUBLES = Path(__file__).parents[1] / "doubles"
USER = "alice"
#: Seconds that a job may wait which never starts. Within them its srun has begun, and Slurm has a reason.
SHORT = 30.0


class Site:
    """A Slurm with five nodes of four GPUs, and what measures them."""

    def __init__(self, slurm: SlurmHarness) -> None:
        self.slurm = slurm
        self.events: list[Event] = []
        tools = slurm.folder / "bin"
        install(tools)
        for double in ("nccl_tests/all_reduce_perf", "perftest/ib_write_bw"):
            shutil.copy(DOUBLES / double, tools)
        links = f"for name in ib_write_bw rping; do ln -s {HOOKS}/ib_write_bw /usr/local/bin/$name; done"
        slurm.run("sh", "-c", links)
        for folder in (slurm.folder, tools):
            folder.chmod(0o755)
        slurm.run("useradd", "--create-home", USER)
        devices = "/dev/gpucluster-test"
        slurm.run("sh", "-c", f"for number in 0 1 2 3; do mknod -m 666 {devices}$number c 1 3; done")
        slurm.write("/etc/slurm/gres.conf", f"Name=gpu File={devices}[0-3]\n")
        for name in NODES:
            slurm.start_slurmd(name)
        slurm.until("the nodes are idle", lambda: all(slurm.flags(name) == {"IDLE"} for name in NODES))

    def plant(self, *faults: Mapping[str, Any], write: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """What the doubles of nccl-tests and perftest print from now on."""
        told = {"ring": 190.0, "default": 230.0, "rail": 47.0, "node": 880.0, "faults": faults, "write": write or {}}
        (self.slurm.folder / "bin" / "plan.json").write_text(json.dumps(told))

    @contextlib.contextmanager
    def session(self, start_s: float = PATIENCE_S) -> Iterator[RemoteSession]:
        """Args: start_s: seconds that a job may wait until it starts."""
        argv = [*self.slurm.command_prefix, *AGENT]
        with process.ProcessConversation(argv, end_s=PATIENCE_S) as talk:
            session = RemoteSession(talk, self.events.append)
            session.begin(USER, start_s=start_s)
            yield session

    def idle(self) -> None:
        """Wait until nothing of ours is left."""
        self.slurm.until(
            "no job is left, and all nodes are idle",
            lambda: not self.slurm.squeue() and all(self.slurm.flags(name) == {"IDLE"} for name in NODES),
        )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pool = SlurmPool("gpu-", len(NODES), "gpu", cloud=False, facts={"Gres": "gpu:4"})
    extra = {
        "GresTypes": "gpu",
        "SchedulerParameters": "sched_interval=2",
        # Within that time a node has to read what srun sends it. No job is run again here, which would have to wait.
        "AuthInfo": "cred_expire=120",
    }
    with SlurmHarness([pool], extra=extra) as slurm:
        yield Site(slurm)


def job(*nodes: str, number: int = 0) -> dict[str, Any]:
    return plan.nccl(POOL, TOOLS, nodes, "default", number=number)


def test_planted_faults_are_found_by_real_jobs(site: Site) -> None:
    site.plant(
        {"kind": "rail", "ends": ["gpu-2", SHAPE.rdma_devices[2]], "share": 0.5},
        {"kind": "nvlink", "ends": ["gpu-5"], "share": 0.8},
        write={SHAPE.rdma_devices[2]: {"gpu-2": 190.0}},
    )
    asked: list[str] = []
    with site.session() as session:

        def run(what: str, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, results.JobAnswer | Missing]:
            asked.append(what)
            return session.run(jobs)

        survey = Survey(POOL, NODES, TOOLS, session.nodes(), session.baseline(), run)
        survey.measure()
        session.record(survey.entries("now"))
        assert session.baseline()[f"{SHAPE.name}/1/default"]["busbw"] == 880.0
    found = {(each.check, each.subject): each for each in survey.findings()}
    bad = {key for key, each in found.items() if each.status is Status.FAIL}
    of_pair = {(name, "gpu-1 and gpu-2") for name in ("nccl_pair", "rdma_bandwidth")}
    assert bad == {("nccl_node", "gpu-5"), ("fabric_rail", "gpu-2"), *of_pair}, found
    assert SHAPE.rdma_devices[2] in found[("fabric_rail", "gpu-2")].message
    assert found[("fabric_node", "gpu-3")].status is Status.PASS
    assert found[("rdma_bandwidth", "gpu-3 and gpu-4")].status is Status.PASS
    assert {each.status for key, each in found.items() if key[0] == "rdma_connection"} == {Status.PASS}, found
    site.idle()


def test_bad_luck_ends_with_an_answer(site: Site) -> None:
    site.plant(
        {"kind": "endless", "ends": ["gpu-1"]},
        {"kind": "cut", "ends": ["gpu-2"]},
        {"kind": "die", "ends": ["gpu-3"]},
        {"kind": "hang", "ends": ["gpu-4"]},
    )
    with site.session() as session, _node_down_while_its_job_runs(site, "gpu-4"):
        answers = dict(session.run([job(name, number=number) for number, name in enumerate(NODES[:4], 1)]))
    with _drained(site, "gpu-5"), site.session(SHORT) as session:
        answers |= session.run([job("gpu-5", number=5)])
    endless, cut, died, lost, starved = (answers[str(number)] for number in range(1, 6))
    outcomes = [each.outcome for each in answers.values() if isinstance(each, results.JobAnswer)]
    assert sorted(outcomes) == ["ended", "ended", "lost", "not_started", "too_much"], answers
    assert isinstance(endless, results.JobAnswer)
    assert len(endless.output) < MOST_OUTPUT / 100
    assert isinstance(starved, results.JobAnswer)
    assert starved.why.startswith(f"it did not start within {SHORT:g} s: ReqNodeNotAvail")
    wanted = results.expectation(SHAPE.name, 1, SHAPE.gpus, "default")
    for each in (endless, cut, lost, starved):
        assert isinstance(results.nccl(each, wanted), Missing)
    # NCCL itself ended it, on one node.
    assert isinstance(results.nccl(died, wanted), RefusedMeasurement)
    site.idle()


@contextlib.contextmanager
def _drained(site: Site, node: str) -> Iterator[None]:
    site.slurm.scontrol("update", f"nodename={node}", "state=drain", "reason=a person's")
    try:
        yield
    finally:
        site.slurm.scontrol("update", f"nodename={node}", "state=resume")


@contextlib.contextmanager
def _node_down_while_its_job_runs(site: Site, node: str) -> Iterator[None]:
    """Beside the test, which waits for the job."""

    def runs() -> bool:
        asked = ("squeue", "--noheader", "--states=RUNNING", f"--nodelist={node}", "--format=%j")
        return "gpucluster-measure" in site.slurm.run(*asked).stdout

    def watch() -> None:
        wait_for(f"its job runs on {node}", runs, interval=0.1, state=site.slurm.logs)
        site.slurm.scontrol("update", f"nodename={node}", "state=down", "reason=test")

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch)
        try:
            yield
            watcher.result()
        finally:
            site.slurm.scontrol("update", f"nodename={node}", "state=resume", check=False)


def test_two_at_once_are_refused_and_nothing_is_left_of_a_killed_one(site: Site) -> None:
    site.plant({"kind": "hang", "ends": ["gpu-1"]})
    argv = [*site.slurm.command_prefix, *AGENT]

    def start() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        child = subprocess.Popen(argv, stdin=pipe, stdout=subprocess.DEVNULL, start_new_session=True)
        assert child.stdin is not None
        for asked in (
            {"operation": "begin", "arguments": {"user": USER, "who": "a run on laptop", "start_s": PATIENCE_S}},
            {"operation": "run", "arguments": {"jobs": [job("gpu-1")]}},
        ):
            child.stdin.write(json.dumps(asked).encode() + b"\n")
        child.stdin.flush()
        site.slurm.until("its job runs", lambda: "RUNNING" in site.slurm.squeue().values())
        return child

    operator_gone = start()
    with pytest.raises(LockedError, match="a run on laptop since"), site.session():
        pass
    assert operator_gone.stdin is not None
    operator_gone.stdin.close()  # that is what the controller sees of a killed operator's machine
    site.idle()
    assert operator_gone.wait(timeout=PATIENCE_S) == 0
    killed = start()
    inside = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()[0]
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", inside], check=True)
    killed.wait(timeout=PATIENCE_S)
    (left,) = site.slurm.squeue()
    # A session before it may have met a job that was ending, and reported it.
    earlier = len(site.events)
    with site.session():
        said = [event.message for event in site.events[earlier:] if "were cancelled" in event.message]
        assert said == [f"jobs that a killed measurement left were cancelled: {left}"]
    site.idle()
