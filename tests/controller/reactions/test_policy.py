"""What follows from what watchers report: only what all nodes of a job agree on, and only what its owner wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.controller.reactions import policy
from gpucluster.controller.reactions.policy import (
    Choice,
    ReactionKind,
    ReactionRecord,
    ReactionSettings,
    Remark,
    WatchedJob,
)
from gpucluster.node_agent.watch.judge import JobActivity

NOW = 10_000.0
JOB = WatchedJob(
    "7", "7", "RUNNING", "2026-11-27T10:00:00", "gpu", frozenset({"n1", "n2"}), others=frozenset({"n3", "n4"}), age=9000
)
NONE = ReactionRecord(JOB.run)
DEFAULT = ReactionSettings()


def remark(node: str, state: JobActivity = JobActivity.HUNG, **changed: Any) -> Remark:
    given: dict[str, Any] = {"since": NOW - 240, "first": NOW - 30, "at": NOW - 5}
    return Remark(node, state, **{**given, **changed})


HUNG = remark("n1", words="rank 1 has launched less", place="rank 1, process 9 on n1", suspect="n1")
WAITS = remark("n2", JobActivity.WAITING)


def act(
    *remarks: Remark,
    job: WatchedJob = JOB,
    record: ReactionRecord = NONE,
    settings: ReactionSettings = DEFAULT,
    comment: str = "",
) -> policy.Act | None:
    return policy.decide(replace(job, comment=comment), remarks, record, settings, NOW)


@pytest.mark.parametrize(
    ("remarks", "hung"),
    [
        ((HUNG, WAITS), True),
        ((HUNG, remark("n2")), True),
        ((HUNG, remark("n2", JobActivity.IDLE)), True),
        ((HUNG, remark("n2", JobActivity.WORKING)), False),
        ((HUNG, remark("n2", JobActivity.STRAGGLING)), False),
        ((WAITS, remark("n1", JobActivity.WAITING)), False),
        # One of them says nothing, or nothing new, or nothing since the other called it hung.
        ((HUNG,), False),
        ((HUNG, replace(WAITS, at=NOW - policy.FRESH_S - 1)), False),
        ((HUNG, replace(WAITS, at=HUNG.first - 1)), False),
        # Slurm does not know that the job is there.
        ((HUNG, remark("n9")), False),
    ],
)
def test_a_job_is_hung_if_all_of_its_nodes_agree(remarks: tuple[Remark, ...], hung: bool) -> None:
    assert (policy.hang(JOB, remarks, NOW) is not None) == hung


def test_the_line_states_where_the_stacks_of_each_node_are() -> None:
    path = "/home/alice/gpucluster-stacks/7-n1-20261128T050000Z.txt"
    found = act(replace(HUNG, stacks=path), replace(WAITS, stacks="none: py-spy is not installed"))
    assert found is not None
    assert found.text.endswith(f". Stacks: n1: {path}; n2: none: py-spy is not installed")
    unwanted = act(HUNG, WAITS)
    assert unwanted is not None
    assert "Stacks" not in unwanted.text


def test_of_many_nodes_the_line_names_the_stacks_of_four() -> None:
    names = [f"n{number}" for number in range(1, 7)]
    job = replace(JOB, nodes=frozenset(names))
    found = policy.decide(job, [remark(name, stacks="/x") for name in names], NONE, DEFAULT, NOW)
    assert found is not None
    assert found.text.endswith("Stacks: n1: /x; n2: /x; n3: /x; n4: /x; and on 2 more nodes")


def test_what_was_heard_of_an_earlier_run_does_not_count() -> None:
    assert policy.hang(replace(JOB, age=4), [HUNG, WAITS], NOW) is None


def test_a_node_that_names_a_rank_is_believed_first() -> None:
    found = policy.hang(JOB, [remark("n2", since=0.0), HUNG], NOW)
    assert found == HUNG


@pytest.mark.parametrize(
    ("comment", "choice"),
    [
        ("", Choice.TELL),
        ("my run, gpucluster:on-hang=requeue", Choice.REQUEUE),
        ("gpucluster:on-hang=cancel;other=1", Choice.CANCEL),
        ("a\nb gpucluster:on-hang=cancel\ngpucluster:on-hang=cancel", Choice.CANCEL),
        ("xgpucluster:on-hang=cancel", Choice.TELL),
        ("on-hang=cancel", Choice.TELL),
        ("gpucluster:on-hang-other=cancel", Choice.TELL),
    ],
)
def test_the_owner_chooses_in_the_comment(comment: str, choice: Choice) -> None:
    assert policy.choice_of(replace(JOB, comment=comment), ReactionSettings()) == (choice, "")


@pytest.mark.parametrize(
    "comment",
    ["gpucluster:on-hang", "gpucluster:on-hang=", "gpucluster:on-hang=Cancel", "gpucluster:on-hang=cancel=1",
     "gpucluster:on-hang=cancel gpucluster:on-hang=tell", "gpucluster:on-hang=cancel gpucluster:on-hang=x"],
)  # fmt: skip
def test_a_choice_that_is_not_clear_is_told_and_nothing_else(comment: str) -> None:
    settings = ReactionSettings(on_hang=Choice.CANCEL)
    found = act(HUNG, WAITS, comment=comment, settings=settings)
    assert found is not None
    assert found.kind is ReactionKind.NOTHING
    assert "one of tell, requeue, cancel is known" in found.text


def test_the_partition_counts_where_the_owner_says_nothing() -> None:
    settings = ReactionSettings(Choice.CANCEL, {"gpu": Choice.REQUEUE})
    assert policy.choice_of(JOB, settings) == (Choice.REQUEUE, "")
    assert policy.choice_of(replace(JOB, partition="big"), settings) == (Choice.CANCEL, "")
    assert policy.choice_of(replace(JOB, comment="gpucluster:on-hang=tell"), settings) == (Choice.TELL, "")


def test_a_hang_is_told_once() -> None:
    found = act(HUNG, WAITS)
    assert found == policy.Act(
        of_hang=True,
        text="gpucluster: job 7 is hung for 4 minutes (rank 1, process 9 on n1): rank 1 has launched less.",
    )
    assert act(HUNG, WAITS, record=replace(NONE, hang_told=True)) is None
    assert act(HUNG, WAITS, job=replace(JOB, state="COMPLETING")) is None


def test_it_is_told_again_after_the_job_has_gone_on() -> None:
    record = replace(NONE, hang_told=True, kind=ReactionKind.CANCEL, pending=True, requeues=2)
    assert policy.after(JOB, record, [HUNG, WAITS], NOW) == record
    assert policy.after(JOB, record, [HUNG, replace(WAITS, state=JobActivity.WORKING)], NOW) == replace(
        NONE, requeues=2
    )
    said = replace(record, told=("it was hung",))
    assert policy.after(JOB, said, [HUNG, replace(WAITS, state=JobActivity.WORKING)], NOW).told == ("it was hung",)


def test_another_run_remembers_only_its_requeues() -> None:
    record = replace(NONE, hang_told=True, kind=ReactionKind.REQUEUE, pending=True, exclude="n1", requeues=1)
    assert policy.after(replace(JOB, run="later"), record, [], NOW) == ReactionRecord("later", requeues=1)
    said = replace(record, told=("it was hung",))
    assert policy.after(replace(JOB, run="later"), said, [], NOW) == ReactionRecord(
        "later", requeues=1, told=("it was hung",)
    )
    waiting = replace(JOB, run="later", state="PENDING")
    assert policy.after(waiting, record, [], NOW) == record


WANTED = "gpucluster:on-hang=requeue"


def test_a_requeued_job_avoids_the_node_of_the_rank() -> None:
    found = act(HUNG, WAITS, comment=WANTED)
    assert found is not None
    assert (found.kind, found.exclude) == (ReactionKind.REQUEUE, "n1")
    assert found.text.endswith(" It is requeued (on-hang=requeue) without n1.")


@pytest.mark.parametrize(
    ("job", "suspect", "words"),
    [
        (JOB, "", "(on-hang=requeue)."),
        (JOB, "n3", "(on-hang=requeue)."),
        (replace(JOB, required=frozenset({"n1"})), "n1", "the job asks for it"),
        (replace(JOB, others=frozenset()), "n1", "too few other nodes"),
    ],
)
def test_a_node_is_not_excluded(job: WatchedJob, suspect: str, words: str) -> None:
    found = act(replace(HUNG, suspect=suspect), WAITS, job=job, comment=WANTED)
    assert found is not None
    assert (found.kind, found.exclude) == (ReactionKind.REQUEUE, "")
    assert words in found.text


@pytest.mark.parametrize(
    ("job", "record", "shadow", "words"),
    [
        (replace(JOB, name="6+1"), NONE, False, "heterogeneous"),
        (JOB, replace(NONE, requeues=policy.MOST_REQUEUES), False, "3 times already"),
        (JOB, NONE, True, "shadow mode"),
    ],
)
def test_a_job_is_not_requeued(job: WatchedJob, record: ReactionRecord, shadow: bool, words: str) -> None:
    found = act(HUNG, WAITS, job=job, record=record, settings=ReactionSettings(shadow=shadow), comment=WANTED)
    assert found is not None
    assert found.kind is ReactionKind.NOTHING
    assert words in found.text


def idle(node: str, minutes: float, state: JobActivity = JobActivity.IDLE) -> Remark:
    return remark(node, state, since=NOW - minutes * 60, idle_gpus=4, idle_s=4 * minutes * 60)


def test_idle_gpus_are_told_once_with_their_waste() -> None:
    found = act(idle("n1", 45, JobActivity.WORKING), remark("n2", JobActivity.WORKING))
    assert found == policy.Act(
        of_hang=False, text="gpucluster: job 7 uses no process on 4 of its GPUs, for 3.0 GPU hours (n1)."
    )
    told = replace(NONE, idle_told=True)
    assert act(idle("n1", 45), WAITS, record=told) is None
    assert policy.after(JOB, told, [idle("n1", 45), WAITS], NOW) == told
    assert policy.after(JOB, told, [remark("n1", JobActivity.WORKING)], NOW) == NONE
    assert policy.after(JOB, told, [], NOW) == told
    # A requeue that is decided stays so.
    both = replace(told, hang_told=True, kind=ReactionKind.REQUEUE, pending=True)
    assert policy.after(JOB, both, [HUNG, WAITS], NOW) == replace(both, idle_told=False)


@pytest.mark.parametrize(
    ("remarks", "ends"),
    [
        ((idle("n1", 130), idle("n2", 121)), True),
        ((idle("n1", 130), idle("n2", 119)), False),
        ((idle("n1", 130), idle("n2", 130, JobActivity.WAITING)), False),
        ((idle("n1", 130),), False),
    ],
)
def test_a_job_is_ended_that_is_idle_on_all_nodes_for_the_time(remarks: tuple[Remark, ...], ends: bool) -> None:
    settings = ReactionSettings(end_idle_s=7200)
    told = replace(NONE, idle_told=True)
    found = act(*remarks, record=told, settings=settings)
    assert (found is not None and found.kind is ReactionKind.CANCEL) == ends
    assert act(*remarks, record=told, settings=replace(settings, shadow=True)) is None
    assert act(*remarks, record=told) is None
    if found is not None:
        assert found.text.endswith("(n1, n2). It is cancelled: the limit here is 120 minutes.")
        assert act(*remarks, record=replace(told, kind=ReactionKind.CANCEL), settings=settings) is None


def test_the_first_line_about_an_idle_job_says_when_it_ends() -> None:
    found = act(idle("n1", 30), idle("n2", 30), settings=ReactionSettings(end_idle_s=7200))
    assert found is not None
    assert found.text == (
        "gpucluster: job 7 uses no process on all of its GPUs, for 4.0 GPU hours (n1, n2)."
        " Such jobs are cancelled here after 120 minutes."
    )
