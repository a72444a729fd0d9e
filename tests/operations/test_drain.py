"""Nodes that are removed: drained in a real Slurm (the harness) by the commands that the operator sends by ssh."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from gpucluster.errors import ToolError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.jobs_hit import LeavingNodes, jobs_hit
from gpucluster.node_agent.rules.reasons import CHANGED, REMOVED, RETURNED, ROLLED
from gpucluster.operations import drain
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import Draining, SlurmJob, SlurmNode, jobs_of, nodes_of
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.doubles.commands import Commands
from tests.waiting import PATIENCE_S

NODES = ("c-1", "c-2", "c-3")
arena_test = [pytest.mark.slurm, pytest.mark.containers]


class ControllerDouble:
    """Stands for `Controller`: its shell is not behind ssh."""

    def __init__(self, *prefix: str) -> None:
        self._prefix = prefix

    def ssh_argv(self, _host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        return [*self._prefix, "sh", "-c", " ".join(command)]


def draining_through(*prefix: str, on_event: Callable[[Event], None], required: bool = True) -> Draining:
    return Draining(cast(ControllerConnection, ControllerDouble(*prefix)), on_event, required=required)


# --- nodes on a physical host that was reported -----


def test_a_node_is_held_whatever_has_drained_it_and_let_in_only_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Commands(tmp_path, monkeypatch)
    programs.prints("sinfo", f"c-1|drained|{CHANGED}\nc-2|idle|none\nc-3|drained|{RETURNED} gpu_ecc: 3\n")
    programs.add("sudo")
    slurm = draining_through(on_event=ignore)
    slurm.hold({"c-1": f"{RETURNED} gpu_ecc: 3", "c-9": f"{RETURNED} x"})
    held = f"scontrol update nodename=c-1 state=drain reason={RETURNED} gpu_ecc: 3"
    assert programs.calls("sudo") == [held]
    slurm.end_hold(["c-1", "c-2", "c-3", "c-9"])
    let_in = "scontrol update nodename=c-3 state=resume"
    assert programs.calls("sudo") == [held, let_in]
    slurm.resume(["c-3"])
    assert programs.calls("sudo") == [held, let_in], "an apply does not let it in"


# --- what Slurm prints -----


def test_nodes_are_read_from_what_sinfo_prints() -> None:
    said = f"c-1|drained*|{REMOVED}\nc-2|mixed+|none\nc-2|mixed|none\nc-3|down~|a | b\n\nnonsense\n"
    assert nodes_of(said) == {
        "c-1": SlurmNode("drained", REMOVED, answers=False),
        "c-2": SlurmNode("mixed", "none"),
        "c-3": SlurmNode("down", "a | b"),
    }
    assert nodes_of(said)["c-1"].drained_by_us
    assert not nodes_of(said)["c-3"].drained_by_us
    # What slurmctld adds to the reason of a node that apply has rebooted does not hide it.
    assert SlurmNode("down", f"{CHANGED} : Node unexpectedly rebooted").drained_by_us


@pytest.mark.parametrize(
    ("state", "takes_jobs", "busy"),
    [("idle", True, False), ("mixed", True, True), ("allocated", True, True), ("completing", True, True),
     ("draining", False, True), ("drained", False, False), ("down", False, False), ("planned", True, False)],
)  # fmt: skip
def test_what_a_state_means(state: str, takes_jobs: bool, busy: bool) -> None:
    node = SlurmNode(state, "none")
    assert (node.takes_jobs, node.busy) == (takes_jobs, busy)


def test_who_has_drained_a_node_is_told_by_its_reason() -> None:
    booted = SlurmNode("drained", f"{ROLLED} : Node unexpectedly rebooted")
    assert (booted.drained_by_rollout, booted.drained_by_us) == (True, False)
    assert not SlurmNode("idle", ROLLED).drained_by_rollout
    assert not SlurmNode("drained", CHANGED).drained_by_rollout
    assert [SlurmNode(state, "none").reserved for state in ("reserved", "maint", "idle")] == [True, True, False]


def test_jobs_are_read_from_what_squeue_prints() -> None:
    assert jobs_of("12|alice|1:00:00|c-[1,3]\n\n") == (SlurmJob("12", "alice", "1:00:00", "c-[1,3]"),)
    assert str(jobs_of("12|alice|1:00|c-1")[0]) == "job 12 of alice on c-1 (1:00 left)"


# --- without an answer -----


@pytest.fixture
def events() -> list[Event]:
    return []


def test_a_silent_slurm_stops_us_and_a_word_lets_us_go_on(events: list[Event]) -> None:
    nobody = draining_through("false", on_event=events.append)
    with pytest.raises(ToolError, match=r"Slurm on the controller gives no answer.*--drain-timeout 0"):
        nobody.drain(dict.fromkeys(["c-1"], REMOVED), 60)
    assert events == []
    nobody.drain(dict.fromkeys(["c-1"], REMOVED), 0)
    assert [(event.name, event.status) for event in events] == [("slurm", "warning")]
    nobody.resume(["c-1"])


def test_where_slurm_was_never_installed_no_job_ever_ran(events: list[Event]) -> None:
    bare = draining_through("/bin/sh", "-c", "exit 127", on_event=events.append)
    bare.drain(dict.fromkeys(["c-1"], REMOVED), 60)
    bare.resume(["c-1"])
    assert events == []


def test_a_node_on_another_machine_is_awaited_until_its_slurmd_answers(
    events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_POLL", 0.01)
    looks = tmp_path / "looks"
    # Slurm gives no answer to the second question: it is asked again.
    script = (
        f"echo >> {looks}; n=$(wc -l < {looks}); [ $n -ne 2 ] || exit 1; "
        "[ $n -gt 3 ] && echo 'c-1|idle|none' || echo 'c-1|idle*|none'"
    )
    late = draining_through("/bin/sh", "-c", script, on_event=events.append)
    late.await_answers(["c-1", "unheard-of"])
    assert looks.read_text().count("\n") == 4
    # The checks report what is wrong.
    monkeypatch.setattr(drain, "_ANSWERS_WITHIN", 0.05)
    draining_through("/bin/sh", "-c", "echo 'c-1|idle*|none'", on_event=events.append).await_answers(["c-1"])
    draining_through("false", on_event=events.append).await_answers(["c-1"])


def test_a_cluster_without_slurm_is_not_stopped_by_a_slurm_that_gives_no_answer(events: list[Event]) -> None:
    without = draining_through("false", on_event=events.append, required=False)
    without.drain({"c-1": REMOVED}, 60)
    without.resume(["c-1"])
    assert events == []


# --- with the real one -----


@pytest.fixture(scope="module")
def slurm_harness() -> Iterator[SlurmHarness]:
    with SlurmHarness([SlurmPool("c-", 3, cloud=False)]) as made:
        for name in NODES:
            made.start_slurmd(name)
        made.until("the nodes are idle", lambda: all(made.flags(name) == {"IDLE"} for name in NODES))
        yield made


@pytest.fixture
def slurm(slurm_harness: SlurmHarness, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Iterator[Draining]:
    monkeypatch.setattr(drain, "_POLL", 0.2)
    yield draining_through(*slurm_harness.command_prefix, on_event=events.append)
    slurm_harness.run("sh", "-c", "scancel --user=root")
    slurm_harness.until("the jobs end", lambda: not slurm_harness.squeue())
    slurm_harness.run("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume", check=False)
    slurm_harness.until("the nodes are idle", lambda: all(slurm_harness.flags(name) == {"IDLE"} for name in NODES))


def reason(slurm_harness: SlurmHarness, name: str) -> str:
    return slurm_harness.run("sinfo", "--noheader", f"--nodes={name}", "--format=%E").stdout.strip()


def seconds(left: str) -> int:
    """The time that a job of less than an hour has left, as Slurm prints it."""
    minutes, rest = left.split(":")
    return int(minutes) * 60 + int(rest)


def left_s(slurm_harness: SlurmHarness, job: str) -> int:
    return seconds(slurm_harness.run("squeue", "--noheader", "--format=%L", f"--jobs={job}").stdout.strip())


def running(slurm_harness: SlurmHarness, *options: str, script: str = "sleep 600") -> str:
    job = slurm_harness.sbatch(*options, script=script)
    slurm_harness.until("the job runs", lambda: slurm_harness.squeue().get(job) == "RUNNING")
    return job


class TestSlurm:
    pytestmark = arena_test

    def test_idle_nodes_are_drained_at_once_and_strangers_left_alone(
        self, slurm_harness: SlurmHarness, slurm: Draining, events: list[Event]
    ) -> None:
        slurm.drain(dict.fromkeys(["c-1", "unheard-of"], REMOVED), PATIENCE_S)
        assert slurm_harness.flags("c-1") == {"IDLE", "DRAIN"}
        assert reason(slurm_harness, "c-1") == REMOVED
        assert slurm_harness.flags("c-2") == {"IDLE"}
        assert [(event.name, event.status) for event in events] == [("node c-1", "draining"), ("node c-1", "drained")]
        slurm.drain(dict.fromkeys(["c-1"], REMOVED), PATIENCE_S)

    def test_a_job_is_waited_for_and_nothing_new_starts(
        self, slurm_harness: SlurmHarness, slurm: Draining, events: list[Event]
    ) -> None:
        job = running(slurm_harness, "--nodelist=c-1", script=slurm_harness.closed("job"))
        with ThreadPoolExecutor(1) as worker:
            drained = worker.submit(slurm.drain, dict.fromkeys(["c-1"], REMOVED), PATIENCE_S)
            try:
                slurm_harness.until("the job is waited for", lambda: any(one.status == "waiting" for one in events))
                assert slurm_harness.squeue() == {job: "RUNNING"}
            finally:
                slurm_harness.open("job")
            drained.result()
        slurm_harness.until("the job is gone", lambda: job not in slurm_harness.squeue())
        waiting = [event.message for event in events if event.status == "waiting"]
        assert f"job {job} of root on c-1" in waiting[0]

    def test_when_time_is_up_the_jobs_are_named_and_the_node_stays_drained_until_it_is_desired_again(
        self, slurm_harness: SlurmHarness, slurm: Draining, events: list[Event]
    ) -> None:
        job = running(slurm_harness, "--nodelist=c-1", "--time=30")
        most = left_s(slurm_harness, job)
        with pytest.raises(ToolError) as caught:
            slurm.drain(dict.fromkeys(["c-1", "c-2"], REMOVED), 1)
        words = str(caught.value)
        (left,) = re.findall(rf"job {job} of root on c-1 \((\d+:\d\d) left\)", words)
        assert most >= seconds(left) >= left_s(slurm_harness, job)
        assert "Nothing was removed" in words
        assert "--drain-timeout" in words
        assert slurm_harness.squeue() == {job: "RUNNING"}
        assert "DRAIN" in slurm_harness.flags("c-1") & slurm_harness.flags("c-2")

        slurm.resume(NODES)
        assert not {"DRAIN"} & (slurm_harness.flags("c-1") | slurm_harness.flags("c-2"))
        assert slurm_harness.squeue() == {job: "RUNNING"}
        assert {event.name for event in events if event.status == "resumed"} == {"node c-1", "node c-2"}

    def test_what_an_administrator_drained_is_his(self, slurm_harness: SlurmHarness, slurm: Draining) -> None:
        slurm_harness.run("scontrol", "update", "nodename=c-2", "state=drain", "reason=broken fan")
        slurm.drain(dict.fromkeys(["c-2"], REMOVED), PATIENCE_S)
        assert reason(slurm_harness, "c-2") == "broken fan"
        slurm.resume(NODES)
        assert "DRAIN" in slurm_harness.flags("c-2")

    def test_without_patience_jobs_are_requeued(
        self, slurm_harness: SlurmHarness, slurm: Draining, events: list[Event]
    ) -> None:
        job = running(slurm_harness, "--nodelist=c-1", "--requeue")
        slurm.drain(dict.fromkeys(["c-1"], REMOVED), 0)
        slurm_harness.until("the job waits again", lambda: slurm_harness.squeue().get(job) == "PENDING")
        # DOWN lasts only until its slurmd registers again (ReturnToService=2).
        assert "DRAIN" in slurm_harness.flags("c-1")
        assert any(f"job {job}" in event.message for event in events if event.status == "warning")
        slurm.resume(["c-1"])
        slurm_harness.until("the node serves again", lambda: not {"DOWN", "DRAIN"} & slurm_harness.flags("c-1"))

    def test_its_jobs_are_listed_for_a_plan(self, slurm_harness: SlurmHarness, slurm: Draining) -> None:
        job = running(slurm_harness, "--nodelist=c-1", "--time=30")
        most = left_s(slurm_harness, job)
        (hit,) = jobs_hit(slurm.all_jobs(timeout=PATIENCE_S), LeavingNodes(frozenset({"c-1"})))
        assert (hit.id, hit.user, hit.nodes) == (job, "root", ("c-1",))
        assert 30 * 60 >= most >= (hit.left_s or 0) >= left_s(slurm_harness, job) > 0
        assert jobs_hit(slurm.all_jobs(timeout=PATIENCE_S), LeavingNodes(frozenset({"c-2"}))) == ()

    def test_a_dead_slurmctld_is_told(self, slurm_harness: SlurmHarness, slurm: Draining) -> None:
        slurm_harness.stop("slurmctld")
        try:
            with pytest.raises(ToolError, match="gives no answer"):
                slurm.drain(dict.fromkeys(["c-1"], REMOVED), 30)
            with pytest.raises(ToolError, match="gives no answer"):
                slurm.all_jobs(timeout=30)
        finally:
            slurm_harness.start_slurmctld()
