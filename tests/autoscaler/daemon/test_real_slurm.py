"""The real Slurm 24.11: what it prints is read, each verb does what it is named for, and it runs the hooks.

A node never boots here but where a test starts its slurmd; SuspendTimeout is 3 s, and the daemon is dead unless a test
listens.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.slurm import SlurmClient, SlurmUnavailable
from gpucluster.autoscaler.daemon.spool import Spool
from gpucluster.autoscaler.decide.types import Annotate, Delay, DrainNodes, Hold, Job, MarkDown, PowerDown
from gpucluster.controller.maintenance.policy import PREFIX, Move, Reserve, RunningJob
from gpucluster.controller.maintenance.slurm import SlurmMaintenance
from gpucluster.node_agent.errors import Failed
from gpucluster.slurm.hostlists import expand
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

# Each test has pools (and partitions) of its own, so that none waits for another's nodes.
POOLS = ("read", "heal", "bare", "het", "held", "talk", "down", "join", "race")
OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
# Slurm's times are whole seconds.
ROUNDED = 2.0
HOSTLISTS = (
    "a1",
    "gpu-e[1-3,7,09-11]",
    "n[008-012],login",
    "r[1-2]n[3,5-6]",
    "a[1-2]-ib,b",
    "x[1,3],x[2-4]",
    "gpu-e[1-120]",
)


def pool_of(name: str) -> str:
    pool = name.partition("-e")[0]
    return pool if pool in POOLS and "-e" in name else ""


@pytest.fixture(scope="module")
def slurm_harness() -> Iterator[SlurmHarness]:
    pools = [SlurmPool(f"{name}-e", 4, partition=name) for name in POOLS]
    static = SlurmPool("fixed-", 2, partition="fixed", cloud=False)
    with SlurmHarness([*pools, static], suspend_time=3600, resume_timeout=300, extra={"MaxArraySize": "2000"}) as made:
        yield made


@pytest.fixture(scope="module")
def slurm(slurm_harness: SlurmHarness) -> SlurmClient:
    return SlurmClient(slurm_harness.command_prefix, pool_of=pool_of)


class Hand:
    """What the tests do over and over."""

    def __init__(self, slurm_harness: SlurmHarness, slurm: SlurmClient) -> None:
        self.slurm_harness, self.slurm = slurm_harness, slurm

    def coming(self, pool: str, *options: str, script: str = "sleep 600") -> Job:
        """A job on two nodes of a pool that power up."""
        number = self.slurm_harness.sbatch("-N2", f"--partition={pool}", *options, script=script)
        self.job(number, lambda job: job.state == "CONFIGURING")
        job = self.slurm.jobs()[number]
        for name in job.nodes:
            self.flags(name, lambda flags: {"POWERING_UP"} <= flags)
        return job

    def job(self, number: str, holds: Callable[[Job], object]) -> Job:
        self.slurm_harness.until(f"job {number}", lambda: holds(self.slurm.jobs()[number]))
        return self.slurm.jobs()[number]

    def flags(self, name: str, holds: Callable[[frozenset[str]], object]) -> frozenset[str]:
        self.slurm_harness.until(name, lambda: holds(self.slurm.nodes()[name].flags))
        return self.slurm.nodes()[name].flags

    def words(self, number: str) -> str:
        lines = self.slurm_harness.scontrol("show", "job", number).splitlines()
        return next((line.partition("=")[2].strip() for line in lines if "AdminComment" in line), "")


@pytest.fixture(scope="module")
def hand(slurm_harness: SlurmHarness, slurm: SlurmClient) -> Hand:
    return Hand(slurm_harness, slurm)


# --- reading -----


def test_it_is_the_version_that_this_is_about(slurm: SlurmClient) -> None:
    assert slurm.version()[:2] == (24, 11)
    assert slurm.alive()


def test_elastic_nodes_are_read_and_static_ones_are_not(slurm: SlurmClient) -> None:
    nodes = slurm.nodes()
    assert set(nodes) == {f"{pool}-e{number}" for pool in POOLS for number in range(1, 5)}
    node = nodes["read-e4"]
    assert (node.pool, node.flags, node.reason, node.instance_id) == ("read", OFF, "", "")
    assert node.powered_down


def test_nodes_that_power_up_and_their_job(hand: Hand, slurm: SlurmClient) -> None:
    before = time.time()
    job = hand.coming("read", "--comment=a|b = 'c'", "--job-name=JobState=RUNNING", "--nice=7")
    after = time.time()
    assert (job.gang, job.partitions, job.nodes, job.node_count) == (job.id, ("read",), ("read-e1", "read-e2"), 2)
    assert (job.restarts, job.requeue, job.user, job.reason) == (0, True, "root", "None")
    assert before - ROUNDED < job.eligible_at < after + ROUNDED
    node = slurm.nodes()["read-e1"]
    assert node.powering_up
    assert node.busy
    assert node.silent
    assert not node.in_service
    assert slurm.node_states(["read-e1", "read-e3", "nowhere-e1"]) == {
        name: slurm.nodes()[name] for name in ("read-e1", "read-e3")
    }
    assert slurm.node_states(["nowhere-e1"]) == {}


def test_waiting_jobs_are_read(slurm_harness: SlurmHarness, slurm: SlurmClient) -> None:
    array = slurm_harness.sbatch("-N1", "-p", "read", "--array=1-1000%1", "--hold")
    before = time.time()
    later = slurm_harness.sbatch("-N3", "-p", "read,heal", "--begin=now+1hour", "--no-requeue")
    after = time.time()
    large = slurm_harness.sbatch("-N3-4", "-p", "read", "--dependency=afterok:" + later)
    jobs = slurm.jobs()
    assert (jobs[array].reason, jobs[array].pending, jobs[array].node_count) == ("JobHeldUser", True, 1)
    assert (jobs[later].reason, jobs[later].partitions, jobs[later].requeue) == ("BeginTime", ("read", "heal"), False)
    assert before - ROUNDED < jobs[later].eligible_at - 3600 < after + ROUNDED
    # Of a range of nodes, Slurm prints the highest value.
    assert (jobs[large].reason, jobs[large].node_count, jobs[large].nodes) == ("Dependency", 4, ())
    slurm_harness.scancel(array, later, large)
    slurm_harness.until("they are gone", lambda: not {array, later, large} & set(slurm.jobs()))


@pytest.mark.parametrize("text", HOSTLISTS)
def test_hostlists_are_expanded_as_slurm_does(slurm_harness: SlurmHarness, text: str) -> None:
    assert expand(text) == slurm_harness.scontrol("show", "hostnames", text).split()


# --- the hooks, as slurmctld runs them -----


def test_slurmctld_runs_the_hooks_with_a_dead_daemon(slurm_harness: SlurmHarness, hand: Hand) -> None:
    spool = Spool(slurm_harness.spool)
    spool.remove([name for name, _ in spool.read()])
    assert not slurm_harness.poke.exists()
    before = time.time()
    job = hand.coming("join")
    slurm_harness.until("a record", lambda: any(set(job.nodes) <= set(intent.nodes) for _, intent in spool.read()))
    (intent,) = [intent for _, intent in spool.read() if job.id in intent.jobs]
    assert intent.kind == "resume"
    assert intent.jobs == {job.id: ("join-e1", "join-e2")}
    after = time.time()
    assert before < intent.at < after
    # A node comes into service, reports who it is, and is given up again.
    slurm_harness.start_slurmd("join-e1", "ocid1.instance.local..1")
    node = {}
    slurm_harness.until("it is in service", lambda: node.update(hand.slurm.nodes()) or node["join-e1"].in_service)
    assert node["join-e1"].instance_id == "ocid1.instance.local..1"
    slurm_harness.scancel(job.id)
    hand.slurm.apply(PowerDown(job.nodes, "it is over"))

    def suspended() -> set[str]:
        # Of this test: nodes of others are given up at any time.
        found = [one.nodes for _, one in spool.read() if one.kind == "suspend"]
        return {name for nodes in found for name in nodes if name in job.nodes}

    # Together or one after the other: Slurm suspends no node on which the job is still ending.
    slurm_harness.until("both are suspended", lambda: suspended() == {"join-e1", "join-e2"})
    slurm_harness.stop("join-e1")


def test_a_hook_works_as_slurms_user_with_an_empty_environment(slurm_harness: SlurmHarness) -> None:
    spool = Spool(slurm_harness.spool)
    as_slurm = ("setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "env", "-i")
    slurm_harness.run(*as_slurm, "/opt/gpucluster/bin/resume-fail", "hook-e[1-3]")
    assert [one.kind for _, one in spool.read() if one.nodes == ("hook-e1", "hook-e2", "hook-e3")] == ["resume_fail"]


def test_the_daemon_is_poked_by_slurms_user(slurm_harness: SlurmHarness) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(slurm_harness.poke))
        slurm_harness.poke.chmod(0o666)
        receiver.settimeout(PATIENCE_S)
        slurm_harness.run(
            "setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "/opt/gpucluster/bin/suspend", "hook-e9"
        )
        # slurmctld pokes as well, for nodes of other tests.
        wait_for("the daemon is poked", lambda: receiver.recv(100) == b"suspend", interval=0)
    slurm_harness.poke.unlink()


# --- the verbs -----


def test_power_down_gives_the_nodes_back_and_the_job_waits_as_long_as_it_is_told(
    hand: Hand, slurm: SlurmClient
) -> None:
    job = hand.coming("heal")
    slurm.apply(PowerDown(job.nodes, "no host is free"))
    # The job is pending before the command returns, so that it can be delayed at once.
    assert slurm.jobs()[job.id].pending
    until = time.time() + 900
    slurm.apply(Delay(job.id, until, 'no "host" is free;\nnext try at noon, a=b'))
    passed = time.time() + 900 - until
    waiting = slurm.jobs()[job.id]
    assert (waiting.state, waiting.restarts, waiting.nodes) == ("PENDING", 1, ())
    assert until - ROUNDED < waiting.eligible_at < until + passed + ROUNDED
    assert hand.words(job.id) == "no 'host' is free; next try at noon, a=b"
    # After SuspendTimeout it is powered down, and that may be before we look.
    hand.flags("heal-e1", lambda flags: flags & {"POWERING_DOWN", "POWERED_DOWN"})
    # The scheduler writes the reason when it looks at the job the next time.
    hand.job(job.id, lambda job: job.reason == "BeginTime")
    # Both nodes are given back.
    for name in job.nodes:
        hand.flags(name, lambda flags: flags == OFF)
    assert slurm.jobs()[job.id].eligible_at == waiting.eligible_at
    # And it can be told to start now; on which nodes is decided by Slurm.
    slurm.apply(Delay(job.id, 0.0, "go"))
    again = hand.job(job.id, lambda job: job.state == "CONFIGURING")
    assert len(again.nodes) == 2
    hand.slurm_harness.scancel(job.id)


def test_a_delay_of_a_job_that_has_nodes_puts_the_words_only(hand: Hand, slurm: SlurmClient) -> None:
    job = hand.coming("race")
    slurm.apply(Delay(job.id, time.time() + 900, "first the words"))
    assert slurm.jobs()[job.id] == job
    assert hand.words(job.id) == "first the words"
    # A hold is kept for when it is requeued.
    slurm.apply(Hold(job.id, "then the hold"))
    slurm.apply(PowerDown(job.nodes, ""))
    assert slurm.jobs()[job.id].pending
    hand.job(job.id, lambda job: job.reason.startswith("JobHeld"))
    hand.slurm_harness.scancel(job.id)


def test_a_hold_stays_until_a_user_releases_it(hand: Hand, slurm: SlurmClient) -> None:
    job = hand.coming("held")
    slurm.apply(PowerDown(job.nodes, ""))
    for _ in range(2):
        slurm.apply(Hold(job.id, "a person has to look"))
    hand.job(job.id, lambda job: (job.reason, job.priority, job.pending) == ("JobHeldUser", 0, True))
    assert hand.words(job.id) == "a person has to look"
    hand.flags("held-e1", lambda flags: flags == OFF)
    # Slurm has looked for jobs to start since then: a later one has nodes.
    later = hand.slurm_harness.sbatch("-N1", "--partition=held")
    hand.job(later, lambda job: job.state == "CONFIGURING")
    assert slurm.jobs()[job.id].pending
    hand.slurm_harness.scancel(later)
    hand.slurm_harness.scontrol("release", job.id)
    hand.job(job.id, lambda job: job.state == "CONFIGURING")
    # Slurm's own way of holding reads the same.
    hand.slurm_harness.scontrol("requeuehold", job.id)
    hand.job(job.id, lambda job: job.reason == "JobHeldAdmin")
    hand.slurm_harness.scancel(job.id)


def test_power_down_heals_what_slurm_gave_up(hand: Hand, slurm: SlurmClient) -> None:
    # That is what ResumeTimeout leaves: DOWN+POWERED_DOWN, for ever.
    names = ("down-e1", "down-e2")
    slurm.apply(MarkDown(names, "gpucluster: no host is free (until 12:00)"))
    node = slurm.nodes()["down-e1"]
    assert node.flags == {"DOWN", "CLOUD", "POWERED_DOWN"}
    assert (node.reason, node.reason_user) == ("gpucluster: no host is free (until 12:00)", "root")
    slurm.apply(PowerDown(names, ""))
    for name in names:
        hand.flags(name, lambda flags: flags == OFF)


def test_power_down_heals_a_powered_down_node_that_slurm_gives_no_job(hand: Hand, slurm: SlurmClient) -> None:
    # An administrator resumes nodes that were down or drained while they were powered down.
    stuck = OFF | {"NOT_RESPONDING"}
    for name, state in (("join-e3", "down"), ("join-e4", "drain")):
        hand.slurm_harness.scontrol("update", f"nodename={name}", f"state={state}", "reason=a test")
        hand.slurm_harness.scontrol("update", f"nodename={name}", "state=resume")
        hand.flags(name, lambda flags: flags == stuck)
    hand.slurm_harness.restart_slurmctld(kill=False)
    number = hand.slurm_harness.sbatch("-N1", "--partition=join", "--nodelist=join-e3")
    # Slurm has looked at the job, and does not start it.
    hand.job(number, lambda job: job.pending and job.reason not in ("None", "Priority"))
    assert slurm.nodes()["join-e3"].flags == stuck
    slurm.apply(PowerDown(("join-e3", "join-e4"), "", force=False))
    assert hand.job(number, lambda job: job.state == "CONFIGURING").nodes == ("join-e3",)
    hand.flags("join-e4", lambda flags: flags == OFF)
    # A node that has got a job by now keeps it.
    slurm.apply(PowerDown(("join-e3",), "", force=False))
    assert slurm.jobs()[number].state == "CONFIGURING"
    hand.slurm_harness.scancel(number)
    slurm.apply(PowerDown(("join-e3",), ""))
    hand.flags("join-e3", lambda flags: flags == OFF)


def test_names_that_slurm_does_not_know_delay_no_other_node(hand: Hand, slurm: SlurmClient) -> None:
    names = ("nowhere-e1", "down-e3", "nowhere-e2", "down-e4", "down-e99")
    slurm.apply(MarkDown(names, "gpucluster: a test"))
    assert slurm.nodes()["down-e3"].down
    assert slurm.nodes()["down-e4"].down
    slurm.apply(PowerDown(names, ""))
    slurm.apply(PowerDown(("nowhere-e1",), ""))
    hand.flags("down-e4", lambda flags: "DOWN" not in flags)


def test_a_job_that_can_not_be_requeued_ends_with_its_nodes(hand: Hand, slurm: SlurmClient) -> None:
    job = hand.coming("bare", "--no-requeue")
    assert not job.requeue
    slurm.apply(PowerDown(job.nodes, ""))
    hand.slurm_harness.until("it has ended", lambda: job.id not in slurm.jobs())
    assert hand.slurm_harness.job(job.id)["JobState"] == "NODE_FAIL"


@pytest.mark.parametrize("number", ["{ended}", "99999"])
def test_a_job_that_is_gone_is_not_an_error(hand: Hand, slurm: SlurmClient, number: str) -> None:
    ended = hand.slurm_harness.sbatch("-N1", "-p", "read", "--hold")
    hand.slurm_harness.scancel(ended)
    job = number.format(ended=ended)
    for action in (Delay(job, time.time() + 60, "words"), Hold(job, "words"), Annotate(job, "words")):
        slurm.apply(action)


def test_what_slurm_refuses_is_reported(hand: Hand, slurm: SlurmClient) -> None:
    with pytest.raises(SlurmUnavailable, match="refused"):
        slurm._update_nodes(["read-e4"], "state=nonsense")


def test_the_parts_of_a_heterogeneous_job_wait_together(hand: Hand, slurm: SlurmClient) -> None:
    leader = hand.slurm_harness.sbatch("-N1", "-p", "het", ":", "-N2", "-p", "het")
    hand.job(leader, lambda job: job.state == "CONFIGURING")
    parts = [job for job in slurm.jobs().values() if job.gang == leader]
    assert [len(job.nodes) for job in parts] == [1, 2]
    # One node of one part is given up: all parts wait again.
    slurm.apply(PowerDown(parts[1].nodes[:1], ""))
    assert all(slurm.jobs()[job.id].pending for job in parts)
    until = time.time() + 900
    slurm.apply(Delay(leader, until, "all or none"))
    passed = time.time() + 900 - until
    jobs = slurm.jobs()
    assert all(until - ROUNDED < jobs[job.id].eligible_at < until + passed + ROUNDED for job in parts)
    assert {hand.words(job.id) for job in parts} == {"all or none"}
    hand.slurm_harness.scancel(leader)


def test_who_waits_at_a_terminal_reads_the_words(hand: Hand, slurm: SlurmClient) -> None:
    hand.slurm_harness.run("sh", "-c", "salloc -N2 -p talk true > /tmp/terminal 2>&1 &")
    hand.slurm_harness.until("it waits", lambda: any(job.partitions == ("talk",) for job in slurm.jobs().values()))
    (job,) = [job for job in slurm.jobs().values() if job.partitions == ("talk",)]
    assert not job.requeue
    slurm.apply(Annotate(job.id, "no host is free: next try at noon"))
    words = "no host is free: next try at noon"
    hand.slurm_harness.until(
        "the words are there", lambda: words in hand.slurm_harness.run("cat", "/tmp/terminal").stdout
    )
    assert hand.words(job.id) == "no host is free: next try at noon"
    hand.slurm_harness.scancel(job.id)


def test_a_drained_node_reports_it(slurm: SlurmClient) -> None:
    slurm.apply(DrainNodes(("talk-e4",), "gpucluster: maintenance at noon"))
    node = slurm.nodes()["talk-e4"]
    assert node.drained
    assert node.reason == "gpucluster: maintenance at noon"


# --- Slurm that is not well -----


def test_slurm_that_hangs_or_is_gone_is_unavailable_and_comes_back(
    slurm_harness: SlurmHarness, slurm: SlurmClient
) -> None:
    before = slurm.nodes()
    impatient = SlurmClient(slurm_harness.command_prefix, pool_of=pool_of, timeout=1)
    slurm_harness.freeze("slurmctld")
    # Slurm's programs try for longer.
    with pytest.raises(SlurmUnavailable, match="did not end within 1"):
        impatient.nodes()
    assert not impatient.alive()
    slurm_harness.thaw("slurmctld")
    slurm_harness.until("it answers again", slurm.alive)
    slurm_harness.stop("slurmctld")
    assert not impatient.alive()
    with pytest.raises(SlurmUnavailable):
        impatient.jobs()
    with pytest.raises(SlurmUnavailable):
        impatient.apply(PowerDown(("read-e4",), ""))
    slurm_harness.start_slurmctld()
    assert slurm.nodes().keys() == before.keys()


# --- the slurm_harness itself -----


def test_everything_in_a_harness_ends_with_it(tmp_path: Path) -> None:
    from gpucluster import process

    with SlurmHarness([SlurmPool("x-e", 1), SlurmPool("s-", 1, cloud=False)]) as small:
        small.start_slurmd("s-1")
        small.until("it is idle", lambda: small.flags("s-1") == {"IDLE"})
        pids = {name: pid for name, (pid, _) in small._daemons.items()}
        folder = small.folder
        assert set(pids) == {"munged", "slurmctld", "s-1"}
        assert json.loads(
            small.run("python3", "-c", "import json, os; print(json.dumps(os.listdir('/sys/class/net')))").stdout
        ) == ["lo"]
    assert [process.identity(pid) for pid in pids.values()] == [None] * 3
    assert not folder.exists()


# --- reservations for maintenance -----


class TestMaintenance:
    """The calls of the health service, with the permanent nodes."""

    @pytest.fixture
    def maintenance(self, slurm_harness: SlurmHarness) -> SlurmMaintenance:
        def ask(*argv: str) -> str:
            result = slurm_harness.run("env", "TZ=UTC", *argv, check=False)
            if result.returncode != 0:
                raise Failed(f"Slurm refused: {(result.stderr or result.stdout).strip()}")
            return result.stdout

        return SlurmMaintenance(ask)

    def test_a_reservation_keeps_jobs_away_from_the_window_and_follows_it(
        self, slurm_harness: SlurmHarness, maintenance: SlurmMaintenance
    ) -> None:
        node, name = "fixed-1", f"{PREFIX}000000000001"
        slurm_harness.start_slurmd(node)
        slurm_harness.until("it registers", lambda: "IDLE" in slurm_harness.flags(node))
        slurm_harness.until("it answers", lambda: not {"DOWN", "NOT_RESPONDING"} & slurm_harness.flags(node))
        runs = slurm_harness.sbatch("-N1", "--partition=fixed", f"--nodelist={node}", "--time=UNLIMITED")
        slurm_harness.until("it runs", lambda: slurm_harness.job(runs)["JobState"] == "RUNNING")
        assert RunningJob(runs, "root", frozenset({node}), math.inf) in maintenance.jobs()

        assert maintenance.reservations() == []
        start = float(int(time.time()) + 3600)
        # Over a job that runs into it, and over the reservation of a user.
        maintenance.reserve(Reserve("course", node, start - 600, start + 600))
        maintenance.reserve(Reserve(name, node, start, start + 7200))
        by_name = {each.name: each for each in maintenance.reservations()}
        mine = by_name[name]
        assert (mine.start, mine.end, mine.nodes, mine.users) == (start, start + 7200, frozenset({node}), "root")
        assert {"MAINT", "IGNORE_JOBS"} <= mine.flags
        assert maintenance.jobs(), "the job that runs goes on"
        maintenance.delete("course")

        maintenance.move(Move(name, start + 1800, start + 9000))
        (moved,) = maintenance.reservations()
        assert (moved.start, moved.end) == (start + 1800, start + 9000)
        maintenance.notify(runs, "gpucluster: maintenance")
        with pytest.raises(Failed):
            maintenance.notify("999999", "nobody")
        slurm_harness.scancel(runs)
        slurm_harness.until("it has ended", lambda: runs not in slurm_harness.squeue())

        # A job that ends before the window starts; one that would run into it waits.
        short = slurm_harness.sbatch("-N1", "--partition=fixed", f"--nodelist={node}", "--time=10")
        slurm_harness.until("it runs", lambda: slurm_harness.job(short)["JobState"] == "RUNNING")
        slurm_harness.scancel(short)
        slurm_harness.until("it has ended", lambda: short not in slurm_harness.squeue())
        long = slurm_harness.sbatch("-N1", "--partition=fixed", f"--nodelist={node}", "--time=600")
        reason = "ReqNodeNotAvail"
        slurm_harness.until("it waits", lambda: slurm_harness.job(long)["Reason"].startswith(reason))

        # It begins: the end can be moved, the beginning is that of a new one.
        maintenance.move(Move(name, time.time(), start))
        (begun,) = maintenance.reservations()
        assert begun.start < start
        maintenance.move(Move(name, None, start + 600))
        maintenance.delete(name)
        maintenance.delete(name)
        assert maintenance.reservations() == []
        slurm_harness.until("the job starts", lambda: slurm_harness.job(long)["JobState"] == "RUNNING")
        slurm_harness.scancel(long)
        slurm_harness.until("it has ended", lambda: long not in slurm_harness.squeue())
