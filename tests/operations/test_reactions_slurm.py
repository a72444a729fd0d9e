"""What follows a hang, with a real Slurm: the line in the output, a requeue, refusals, arrays, idle jobs.

The watchers are played: no node here has a GPU. How their words come to the controller is in test_message.py, and in
test_service.py of the health service.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.health.control import Control
from gpucluster.controller.health.service import HealthDaemon, Listener
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.slurm import NoSlurm
from gpucluster.controller.health.store import ReportStore, now
from gpucluster.controller.reactions.control import Reactions
from gpucluster.controller.reactions.jobs import SlurmJobs
from gpucluster.controller.reactions.policy import NOTICE_S, Choice, ReactionSettings
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.health import client
from gpucluster.node_agent.watch import __main__ as watch
from gpucluster.node_agent.watch import kept
from gpucluster.node_agent.watch.judge import JobActivity
from gpucluster.node_agent.watch.message import ReportedJob
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

NODES = ("n-1", "n-2", "n-3")
IDLE = ReportedJob("", JobActivity.IDLE, 8000.0, idle=4, idle_s=32_000.0)
BUSY = ReportedJob("", JobActivity.WORKING, 10.0)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmHarness]:
    with SlurmHarness([SlurmPool("n-", 3, partition="gpu", cloud=False)]) as made:
        for name in NODES:
            made.start_slurmd(name)
        made.until("the nodes are there", lambda: all("IDLE" in made.flags(name) for name in NODES))
        yield made


class Site:
    """The controller's side. Commands run as the user slurm, as those of the health service do."""

    def __init__(self, slurm: SlurmHarness, folder: Path, settings: ReactionSettings) -> None:
        self.slurm, self.now, self.wall, self.said = slurm, 0.0, 1e9, list[str]()
        self.service = Reactions(
            folder, SlurmJobs(), settings, clock=lambda: self.now, wall=lambda: self.wall, say=self.said.append
        )

    def hear(self, job: str, **said: ReportedJob) -> None:
        """Each node speaks, `n_1` for n-1; twice, because words before the first hang do not count."""
        for _ in range(2):
            self.now += 0.001
            for name, each in said.items():
                self.service.hear(name.replace("_", "-"), [each._replace(job_id=job)])

    def tick(self) -> None:
        """A pass. The next one is not before Slurm has had its time for a line."""
        self.service.tick()
        self.wall += NOTICE_S


@pytest.fixture
def site(slurm: SlurmHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    call = programs.call

    def inside(argv: list[str], text: str = "", seconds: float = programs.SECONDS) -> Any:
        return call([*slurm.command_prefix, "runuser", "-u", "slurm", "--", *argv], text, seconds)

    monkeypatch.setattr(programs, "call", inside)
    yield lambda settings: Site(slurm, tmp_path, settings)
    slurm.scancel("--user=root")
    slurm.until("the nodes are free", lambda: all(slurm.flags(name) == {"IDLE"} for name in NODES))


def started(slurm: SlurmHarness, name: str, *options: str, script: str = "sleep 600") -> str:
    job = slurm.sbatch(f"--output=/tmp/{name}.out", "--partition=gpu", "--exclusive", *options, script=script)
    slurm.until("it runs", lambda: slurm.squeue().get(job) == "RUNNING")
    until_it_writes(slurm, name)
    return job


def until_it_writes(slurm: SlurmHarness, *names: str) -> None:
    """A job is RUNNING before its node has opened its output: a line that came before that would not be there."""
    files = [f"/tmp/{name}.out" for name in names]
    slurm.until("it has its output", lambda: slurm.run("ls", *files, check=False).returncode == 0)


def output(slurm: SlurmHarness, name: str) -> str:
    return slurm.run("cat", f"/tmp/{name}.out", check=False).stdout


def hung(node: str) -> ReportedJob:
    return ReportedJob(
        "", JobActivity.HUNG, 240.0, "rank 1 has launched 20 AllReduce operations, and others 22", "1", 99, node
    )


def test_munge_proves_that_root_of_a_node_speaks(
    slurm: SlurmHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the watcher's file to the service, with credentials of a real munge: as a user's, they are refused."""
    call, user = programs.call, "root"

    def inside(argv: list[str], text: str = "", seconds: float = programs.SECONDS) -> Any:
        # As the unit does it: root that has lost all rights.
        right = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if argv[0] == "munge" and user == "root" else ()
        return call([*slurm.command_prefix, "runuser", "-u", user, "--", *right, *argv], text, seconds)

    monkeypatch.setattr(programs, "call", inside)
    # The watcher gives up after seconds, and speaks again later.
    monkeypatch.setattr(client, "exchange", partial(client.exchange, seconds=PATIENCE_S))
    hosts = {"127.0.0.1": "n-1"}
    known = HealthSettings(True, 300, 20, False, (), hosts, {"gpu": NODES})
    store = ReportStore(tmp_path, interval=300)
    control = Control(store, NoSlurm(), known.policy, drains=(), moment=now)
    found = Reactions(tmp_path, SlurmJobs(), ReactionSettings(), say=lambda _words: None)
    service = HealthDaemon(known, store, NoSlurm(), control, drains=(), moment=now, reactions=found)
    listener = Listener(service, "127.0.0.1", 0)
    thread = threading.Thread(target=listener.serve, daemon=True)
    thread.start()
    try:
        file = tmp_path / "jobs.json"
        kept.write([kept.ObservedJob("7", "hung", 0.0)], 100.0, file)
        sent = watch.sent("127.0.0.1", listener.port)
        watch.JobReporter(sent, file, lambda: 101.0, "n-1").look()
        assert list(found._heard) == ["n-1"]
        user = "slurm"
        with pytest.raises(Failed, match="only root reports"):
            sent('{"watched_jobs": {"node": "n-1", "jobs": []}}')
        assert list(found._heard["n-1"]) == ["7"]
    finally:
        listener.close()
        thread.join(PATIENCE_S)


def test_the_owner_reads_it_in_the_output_and_the_job_goes_on(slurm: SlurmHarness, site: Any) -> None:
    found = site(ReactionSettings())
    nasty = "--comment=Requeue=1 | x\n|RUNNING| $(id)"
    job = started(slurm, "tell", "--nodes=2", "--nodelist=n-1,n-2", nasty)
    # A node where Slurm runs no such job may report anything.
    found.hear(job, n_1=BUSY, n_3=hung("n-3"))
    found.tick()
    assert found.said == []
    found.hear(job, n_1=hung("n-1"), n_2=ReportedJob("", JobActivity.WAITING, 100.0))
    for _ in range(2):
        found.tick()
    line = (
        f"gpucluster: job {job} is hung for 4 minutes (rank 1, process 99 on n-1):"
        " rank 1 has launched 20 AllReduce operations, and others 22."
    )
    slurm.until("the line is there", lambda: line in output(slurm, "tell"))
    assert output(slurm, "tell").count("gpucluster:") == 1
    assert slurm.squeue()[job] == "RUNNING"


def test_the_requeued_job_runs_elsewhere(slurm: SlurmHarness, site: Any) -> None:
    found = site(ReactionSettings(partitions={"gpu": Choice.REQUEUE}))
    job = started(slurm, "requeue", "--nodes=1", "--requeue", "--exclude=n-3", "--output=/tmp/requeue.out")
    (node,) = re.findall(r"n-\d", slurm.job(job)["NodeList"])
    found.hear(job, **{node.replace("-", "_"): hung(node)})
    found.tick()
    slurm.until("the line is there", lambda: "It is requeued" in output(slurm, "requeue"))
    assert slurm.job(job)["Restarts"] == "0"

    def avoided() -> bool:
        found.tick()
        return slurm.job(job)["ExcNodeList"] not in ("n-3", "(null)")

    slurm.until("the node is excluded", avoided)
    fields = slurm.job(job)
    assert fields["ExcNodeList"] == f"{node},n-3"
    assert fields["Restarts"] == "1"
    found.tick()
    slurm.until("it runs again", lambda: slurm.squeue().get(job) == "RUNNING")
    other = {"n-1": "n-2", "n-2": "n-1"}[node]
    assert slurm.job(job)["NodeList"] == other
    assert f"without {node}." in found.said[0]


def test_slurm_refuses_to_requeue_a_job_that_does_not_want_it(slurm: SlurmHarness, site: Any) -> None:
    found = site(ReactionSettings())
    job = started(
        slurm, "stays", "--nodes=1", "--nodelist=n-1", "--no-requeue", "--comment=x gpucluster:on-hang=requeue"
    )
    for _ in range(3):
        found.hear(job, n_1=hung("n-1"))
        found.tick()
    # Slurm brings each line by a thread of its own: the second one may come first.
    slurm.until("both lines are there", lambda: output(slurm, "stays").count("gpucluster:") > 1)
    assert output(slurm, "stays").count("gpucluster:") == 2
    assert f"Slurm does not requeue job {job}. It stays as it is." in output(slurm, "stays")
    assert (slurm.squeue()[job], slurm.job(job)["Restarts"]) == ("RUNNING", "0")


def test_one_task_of_an_array_is_cancelled(slurm: SlurmHarness, site: Any) -> None:
    found = site(ReactionSettings(on_hang=Choice.CANCEL))
    options = ("--output=/tmp/array-%a.out", "--partition=gpu", "--exclusive", "--nodes=1", "--array=1-2")
    job = slurm.sbatch(*options, script="sleep 600")
    slurm.until("both run", lambda: list(slurm.squeue().values()) == ["RUNNING", "RUNNING"])
    until_it_writes(slurm, "array-1", "array-2")
    # The last task has the number of the array.
    fields = slurm.job(job)
    (node,) = re.findall(
        r"NodeList=(n-\d)",
        next(line for line in slurm.scontrol("--oneliner", "show", "job", job).splitlines() if f"JobId={job} " in line),
    )
    assert fields["ArrayJobId"] == job
    found.hear(job, **{node.replace("-", "_"): hung(node)})
    found.tick()
    slurm.until("it is told", lambda: any(f"job {job}_2 is hung" in output(slurm, f"array-{task}") for task in (1, 2)))
    assert list(slurm.squeue().values()) == ["RUNNING", "RUNNING"]
    found.tick()
    slurm.until("one is left", lambda: list(slurm.squeue().values()) == ["RUNNING"])
    assert job not in slurm.squeue()


def test_a_job_is_cancelled_that_leaves_its_gpus_idle(slurm: SlurmHarness, site: Any) -> None:
    found = site(ReactionSettings(end_idle_s=7200))
    job = started(slurm, "idle", "--nodes=2", "--nodelist=n-1,n-2")
    found.hear(job, n_1=IDLE, n_2=BUSY)
    found.tick()
    slurm.until("it is told", lambda: "on 4 of its GPUs, for 8.9 GPU hours (n-1)." in output(slurm, "idle"))
    assert slurm.squeue()[job] == "RUNNING"
    found.hear(job, n_1=IDLE, n_2=IDLE)
    found.tick()
    line = "for 17.8 GPU hours (n-1, n-2). It is cancelled: the limit here is 120 minutes."
    slurm.until("it is told", lambda: line in output(slurm, "idle"))
    assert slurm.squeue()[job] == "RUNNING"
    found.tick()
    slurm.until("it is gone", lambda: job not in slurm.squeue())
