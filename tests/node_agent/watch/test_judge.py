"""What a job does, from series of looks. Powers and utilizations are those that were measured (see `series`)."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.watch import judge, ras
from gpucluster.node_agent.watch.judge import GpuReading, JobActivity, JobMemory, Limits, Look, Process
from tests.doubles import ras_server
from tests.node_agent.watch import series
from tests.node_agent.watch.series import FIRST_PID, LIMITS, MOST_POWER, WORKS, Job, free, gpus, launched, processes

BEHIND = launched(220, 220, 200, 220)
ALIKE = launched(220, 220, 220, 220)


def states(job: Job) -> set[JobActivity]:
    return {found.state for found in job.found}


# --- hangs -----


def test_a_rank_that_never_comes_is_named_after_the_time_of_a_hang() -> None:
    job = Job()
    job.look(600, WORKS)
    early = job.look(LIMITS.hang - series.INTERVAL, gpus(use=(1, 1, 0, 1)), BEHIND)
    assert early.state is JobActivity.WAITING
    found = job.look(60, gpus(use=(1, 1, 0, 1)), BEHIND)
    assert (found.state, found.rank, found.collective) == (
        JobActivity.HUNG, ras.Rank(2, ras_server.HOST, FIRST_PID + 2, 2), "AllReduce",
    )  # fmt: skip
    assert "rank 2 has launched 200 AllReduce operations, and others 220" in found.words
    # It began with the first of the equal counts.
    assert found.since == 1000.0 + 600 + series.INTERVAL


def test_a_rank_that_calls_another_collective_is_the_one_that_is_named() -> None:
    counts = [{"AllReduce": 200}, {"AllReduce": 200}, {"AllReduce": 199, "AllGather": 1}, {"AllReduce": 200}]
    # Each process asks for the end of its kernel, and uses a processor for that.
    found = Job().look(240, gpus(), launched(*counts), processes(0, 1, 2, 3))
    assert (found.state, found.rank and found.rank.rank, found.collective) == (JobActivity.HUNG, 2, "AllReduce")


def test_a_rank_that_calls_one_more_collective_is_the_one_that_is_named() -> None:
    """Seen on two H200: both ranks wait in a kernel, and no rank is behind in its usual operations."""
    counts = [{"AllReduce": 2812}, {"AllReduce": 2812, "Broadcast": 1}]
    found = Job().look(240, gpus()[:2], launched(*counts), processes(0, 1))
    assert (found.state, found.rank and found.rank.rank, found.collective) == (JobActivity.HUNG, 1, "Broadcast")
    assert found.words == "rank 1 has launched 1 Broadcast operations, and others 0"
    # The others have not come to it yet.
    found = Job().look(240, gpus(use=(0, 1))[:2], launched(*counts))
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.HUNG, 0)


def test_a_stopped_rank_is_a_hang_within_a_minute() -> None:
    job = Job()
    answer = launched(220, 220, 220, 220, missing=[1])
    assert job.look(45, gpus(use=(1, 0, 1, 1)), answer, processes(stopped=[1])).state is JobActivity.WAITING
    found = job.look(15, gpus(use=(1, 0, 1, 1)), answer, processes(stopped=[1]))
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.HUNG, 1)
    assert found.words == "rank 1 gives no answer to RAS: its process is stopped"


def test_a_stopped_process_is_a_hang_also_where_it_is_the_one_that_ras_asks() -> None:
    """Seen on four H100: the stopped process takes the connection and reports nothing."""
    job = Job()
    job.look(600, WORKS)
    assert job.look(45, gpus(use=(1, 1, 0, 1)), None, processes(stopped=[2])).state is JobActivity.WAITING
    assert judge.hurried(job.memory, job.now, LIMITS)
    found = job.look(30, gpus(use=(1, 1, 0, 1)), None, processes(stopped=[2]))
    assert (found.state, found.rank) == (JobActivity.HUNG, None)
    assert found.words == f"process {FIRST_PID + 2} on GPU 2 is stopped, and the others wait for it"
    assert found.since == 1000.0 + 600 + series.INTERVAL
    assert job.look(15, WORKS).state is JobActivity.WORKING


def test_a_job_that_is_suspended_is_not_hung() -> None:
    job = Job()
    job.look(900, gpus(use=(0, 0, 0, 0)), None, processes(stopped=[0, 1, 2, 3]))
    job.look(900, gpus(), None, processes(stopped=[0, 1, 2, 3]))
    # Stopped in a debugger for a moment, again and again.
    for _ in range(20):
        job.look(30, gpus(use=(1, 1, 0, 1)), None, processes(stopped=[2]))
        job.look(15, gpus(use=(1, 1, 0, 1)), None, processes())
    assert JobActivity.HUNG not in states(job)


def test_a_rank_that_was_missing_in_one_answer_is_none() -> None:
    job = Job()
    for _ in range(20):
        job.look(15, gpus(), launched(*[len(job.found)] * 4, missing=[1]))
        job.look(15, gpus(), launched(*[len(job.found)] * 4))
    assert JobActivity.HUNG not in states(job)


def test_a_lost_network_leaves_all_ranks_in_a_kernel() -> None:
    found = Job().look(240, gpus(), ALIKE, processes(0, 1, 2, 3))
    assert (found.state, found.rank) == (JobActivity.HUNG, None)


def test_a_hang_goes_on_where_ras_once_reports_nothing() -> None:
    job = Job()
    before = job.look(240, gpus(use=(1, 1, 0, 1)), BEHIND)
    assert job.look(30, gpus(use=(1, 1, 0, 1)), None) == before
    assert job.look(15, WORKS).state is JobActivity.WORKING


def test_a_hang_is_seen_in_the_text_of_older_releases() -> None:
    text = ras_server.text(warnings=ras_server.mismatch("AllReduce", [220, 220, 200, 220]))
    found = Job().look(240, gpus(use=(1, 1, 0, 1)), ras.parse(text))
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.HUNG, 2)


def test_in_a_text_that_does_not_name_who_is_behind_all_gpus_have_to_wait() -> None:
    text = ras_server.mismatch("AllReduce", [200, 200, 199, 200]) + ras_server.mismatch("AllGather", [0, 0, 1, 0])
    answer = ras.parse(ras_server.text(warnings=text))
    assert Job().look(600, gpus(use=(1, 0, 1, 1)), answer).state is JobActivity.WAITING
    assert Job().look(240, gpus(), answer).state is JobActivity.HUNG


# --- a job on several nodes -----


def test_a_node_without_the_rank_that_is_behind_does_not_decide() -> None:
    found = Job().look(3600, gpus(), BEHIND, {})
    assert found.state is JobActivity.WAITING
    assert "its own node decides" in found.words


def test_a_rank_on_another_node_that_is_missing_is_a_hang() -> None:
    assert Job().look(240, gpus(), launched(9, 9, 9, 9, 9, missing=[4])).state is JobActivity.HUNG


# --- a straggler -----


def test_a_slow_rank_is_a_straggler_while_the_counts_grow() -> None:
    job = Job()
    ticks = count(100)
    found = job.look(150, gpus(155.0, (1, 1, 0.06, 1)), lambda _: launched(*[next(ticks)] * 4))
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.STRAGGLING, 2)
    assert "GPU 2" in found.words
    assert job.look(15, WORKS).state is JobActivity.WORKING


SHARED = (
    GpuReading(0, 427.5, MOST_POWER, 0.99, 0.1, frozenset({1397})),
    GpuReading(1, 692.4, MOST_POWER, 1.0, 0.23, frozenset({1398, 99}), frozenset({99})),
)


def test_a_gpu_that_another_program_uses_too_is_named() -> None:
    """Powers and utilizations of two H200."""
    job = Job()
    job.look(60, (SHARED[0]._replace(power=690.1, memory=0.24), SHARED[1]._replace(strangers=frozenset())))
    assert job.look(judge.SHARED_S, SHARED, launched(7, 7)).state is JobActivity.WORKING
    assert judge.hurried(job.memory, job.now, LIMITS)
    found = job.look(15, SHARED, launched(7, 7))
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.STRAGGLING, 1)
    assert found.words == "process 99, which is not of this job, uses GPU 1, and the others wait for it"
    assert not judge.hurried(job.memory, job.now, LIMITS)
    assert job.look(15, WORKS).state is JobActivity.WORKING


@pytest.mark.parametrize(
    "of",
    [
        pytest.param((SHARED[0], SHARED[1]._replace(strangers=frozenset())), id="one rank evaluates"),
        pytest.param((SHARED[0]._replace(power=600.0), SHARED[1]), id="nobody waits for it"),
        pytest.param(tuple(gpu._replace(strangers=frozenset({99})) for gpu in SHARED), id="a server of MPS"),
        pytest.param((SHARED[0]._replace(strangers=frozenset({99})), SHARED[1]._replace(strangers=frozenset())),
                     id="it is on the GPU that waits"),
        pytest.param((SHARED[0]._replace(power=124.0, memory=0.0), SHARED[1]), id="one rank evaluates beside it"),
    ],
)  # fmt: skip
def test_uneven_power_alone_is_no_fault(of: tuple[GpuReading, ...]) -> None:
    job = Job()
    job.look(3600, of)
    assert states(job) == {JobActivity.WORKING}


def test_small_work_at_low_power_is_work() -> None:
    ticks = count(100)
    found = Job().look(3600, gpus(150.0, (1, 0.97, 1, 0.95)), lambda _: launched(*[next(ticks)] * 4))
    assert found.state is JobActivity.WORKING


# --- healthy phases without work of GPUs -----


@pytest.mark.parametrize(
    ("of", "answer", "busy"),
    [
        pytest.param(gpus(90.0, (0, 0, 0, 0)), ALIKE, (0, 1, 2, 3), id="all ranks load data, or compile"),
        pytest.param(gpus(90.0, (0, 0, 0, 0)), ALIKE, (), id="all ranks wait for a file server"),
        pytest.param(gpus(120.0, (0, 1, 1, 1)), launched(219, 220, 220, 220), (0,), id="rank 0 writes a checkpoint"),
        pytest.param(gpus(120.0, (0, 0, 0, 1)), launched(219, 219, 219, 220), (0, 1), id="most ranks load data"),
        pytest.param(gpus(120.0, (0, 1, 1, 1)), ALIKE, (0,), id="rank 0 compiles after its collective"),
        pytest.param(gpus(110.0, (1, 1, 1, 1), 0.3), None, (), id="a program without NCCL at low power"),
        pytest.param(gpus(120.0), None, (), id="RAS is switched off"),
        pytest.param(gpus(120.0), ras.parse(ras_server.text()), (), id="an older NCCL that reports no fault"),
    ],
)
def test_a_healthy_phase_is_never_a_hang(
    of: tuple[GpuReading, ...], answer: ras.RasAnswer | None, busy: tuple[int, ...]
) -> None:
    job = Job()
    job.look(24 * 3600, of, answer, processes(*busy))
    assert states(job) <= {JobActivity.WORKING, JobActivity.WAITING}


def test_evaluation_on_one_gpu_is_work() -> None:
    of = (*gpus(650.0, (1,)), *gpus(120.0, (1, 1, 1, 1))[1:])
    assert Job().look(3600, of, launched(219, 220, 220, 220)).state is JobActivity.WORKING


@pytest.mark.parametrize(
    "alone",
    [
        # Graphs of small kernels without a pause took 170 W on H200 beside 124 W: that was once called a hang.
        GpuReading(0, 170.2, MOST_POWER, 1.0, 0.0, frozenset({FIRST_PID})),
        GpuReading(0, 130.0, MOST_POWER, 1.0, 0.4, frozenset({FIRST_PID})),
    ],
)
def test_evaluation_with_kernels_of_low_power_is_work(alone: GpuReading) -> None:
    job = Job()
    of = (alone, *gpus(123.9)[1:])
    found = job.look(3600, of, launched(1537, 1545, 1545, 1545), processes(0, 1, 2, 3))
    assert states(job) == {JobActivity.WORKING}
    assert found.words.endswith("its process is at work")


def test_gpus_that_wait_with_different_powers_are_in_a_hang() -> None:
    of = tuple(gpu._replace(power=118.0 + 20 * gpu.number) for gpu in gpus())
    assert Job().look(240, of, ALIKE, processes(0, 1, 2, 3)).state is JobActivity.HUNG
    of = tuple(gpu._replace(power=118.0 + 10 * gpu.number) for gpu in gpus(use=(1, 0, 1, 1)))
    assert Job().look(240, of, launched(220, 200, 220, 220), processes(0, 2, 3)).state is JobActivity.HUNG


def test_a_rank_that_works_now_and_then_is_none_that_hangs() -> None:
    job = Job()
    for number in range(100):
        job.look(15, gpus(use=(1, 1, 0, 1)), BEHIND, processes(*[2][: number % 8 == 0]))
    assert JobActivity.HUNG not in states(job)


def test_two_long_checkpoints_are_not_added() -> None:
    job = Job()
    for number in range(10):
        job.look(LIMITS.hang - 30, gpus(use=(0, 1, 1, 1)), launched(number, *[number + 1] * 3))
        job.look(60, WORKS)
    assert JobActivity.HUNG not in states(job)


def test_a_gpu_whose_power_is_unknown_proves_nothing() -> None:
    of = tuple(gpu._replace(power=None) for gpu in gpus())
    assert Job().look(3600, of, BEHIND).state is JobActivity.WORKING


# --- without RAS -----


def test_without_ras_a_hang_needs_the_time_that_the_administrator_sets() -> None:
    job = Job(Limits(hang=180.0, idle=1800.0, silent=1200.0))
    assert job.look(1200, gpus()).state is JobActivity.WAITING
    found = job.look(30, gpus())
    assert (found.state, found.rank, found.since) == (JobActivity.HUNG, None, 1015.0)


def test_kernels_that_use_memory_are_no_hang_without_ras() -> None:
    job = Job(Limits(hang=180.0, idle=1800.0, silent=1200.0))
    assert job.look(7200, gpus(memory=0.2)).state is JobActivity.WAITING


# --- a process that is gone -----

LOST = (*gpus(use=(1, 1, 1, 0))[:3], *free()[3:])


def test_a_process_that_is_gone_is_a_hang_also_where_it_was_the_one_that_ras_asks() -> None:
    """The process that has RAS's port may be the one that was killed: then nothing listens any more."""
    job = Job()
    job.look(600, WORKS)
    assert job.look(LIMITS.hang, LOST).state is JobActivity.WAITING
    found = job.look(15, LOST)
    assert found.state is JobActivity.HUNG
    assert found.words == "GPU 3 has lost its process, and the others wait in kernels; RAS gives no answer"
    assert found.since == 1000.0 + 600 + series.INTERVAL
    assert job.look(15, WORKS).state is JobActivity.WORKING


def test_a_process_that_is_gone_is_named_with_its_rank_where_ras_misses_it() -> None:
    job = Job()
    job.look(600, WORKS)
    answer = launched(220, 220, 220, 220, missing=[3])
    alive = {pid: process for pid, process in processes(0, 1, 2).items() if pid != FIRST_PID + 3}
    assert job.look(LIMITS.hang, LOST, answer, alive).state is JobActivity.WAITING
    found = job.look(15, LOST, answer, alive)
    assert (found.state, found.rank and found.rank.rank) == (JobActivity.HUNG, 3)
    assert found.words == "rank 3 gives no answer to RAS: GPU 3 has lost its process"


@pytest.mark.parametrize(
    ("of", "busy"),
    [
        pytest.param((*gpus(90.0, (0, 0, 0, 0))[:1], *free()[1:]), (0,), id="rank 0 writes what was learnt"),
        pytest.param((*gpus(90.0, (0, 0, 0, 0))[:1], *free()[1:]), (), id="and waits for its file server"),
        pytest.param((*gpus(200.0, memory=0.3)[:1], *free()[1:]), (0,), id="rank 0 evaluates for the last time"),
    ],
)
def test_ranks_that_have_ended_before_the_last_one_are_no_hang(
    of: tuple[GpuReading, ...], busy: tuple[int, ...]
) -> None:
    """Without destroy_process_group, RAS misses them."""
    job = Job()
    job.look(600, WORKS)
    alive = {FIRST_PID: processes(*busy)[FIRST_PID]}
    job.look(3600, of, launched(220, 220, 220, 220, missing=[1, 2, 3]), alive)
    assert JobActivity.HUNG not in states(job)


def test_what_is_looked_at_soon_is_what_may_have_begun() -> None:
    job = Job()
    assert not judge.hurried(job.memory, job.now, LIMITS)
    job.look(60, WORKS)
    assert not judge.hurried(job.memory, job.now, LIMITS)
    job.look(15, gpus(use=(1, 1, 0, 1)), BEHIND)
    assert judge.hurried(job.memory, job.now, LIMITS)
    job.look(LIMITS.hang, gpus(use=(1, 1, 0, 1)), BEHIND)
    assert not judge.hurried(job.memory, job.now, LIMITS), "it is known"
    job.look(15, WORKS)
    # A job that is small, or waits for hours, costs no more than others.
    job.look(LIMITS.hang + 60, gpus(150.0, memory=0.3), None)
    assert not judge.hurried(job.memory, job.now, LIMITS)


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ((*WORKS[:3], *free()[3:]), LOST),  # the GPU had no process before either
        (WORKS, (*gpus(use=(0, 0, 0, 0))[:3], *free()[3:])),  # the others wait for no kernel
        (WORKS, (*gpus(use=(1, 1, 1, 1), memory=0.3)[:3], *free()[3:])),  # their kernels use memory
        (WORKS, (*gpus(250.0)[:3], *free()[3:])),  # their kernels are small ones of programs of their own
    ],
)
def test_a_gpu_without_a_process_is_no_hang_where_none_waits_for_it(
    before: tuple[GpuReading, ...], later: tuple[GpuReading, ...]
) -> None:
    job = Job()
    job.look(600, before)
    job.look(1200, later)
    assert JobActivity.HUNG not in states(job)


# --- idle GPUs -----


def test_gpus_without_a_process_are_idle_after_their_time() -> None:
    job = Job()
    assert job.look(1800, free()).state is JobActivity.WAITING
    found = job.look(15, free())
    assert (found.state, found.since, dict(found.idle)) == (JobActivity.IDLE, 1015.0, dict.fromkeys(range(4), 1800.0))
    assert job.look(15, WORKS).state is JobActivity.WORKING


def test_some_idle_gpus_of_a_job_that_works_are_counted() -> None:
    of = (*WORKS[:3], *free()[3:])
    found = Job().look(3600, of)
    assert (found.state, list(found.idle)) == (JobActivity.WORKING, [3])


def test_a_hang_beside_idle_gpus_is_found() -> None:
    of = (*gpus(use=(1, 1, 0, 1))[:3], *free()[3:])
    assert Job().look(240, of, launched(220, 220, 200)).state is JobActivity.HUNG


def test_a_gpu_with_a_process_is_not_idle_however_long_it_does_nothing() -> None:
    assert Job().look(24 * 3600, gpus(90.0, (0, 0, 0, 0))).idle == {}


# --- whatever comes -----

PARTS = st.sampled_from([0.0, 0.06, 0.5, 1.0])
GPU = st.builds(
    GpuReading, st.integers(0, 7), st.none() | st.floats(0, 800), st.none() | st.floats(0, 800), PARTS, PARTS,
    st.none() | st.frozensets(st.integers(1, 5)),
)  # fmt: skip
ANSWER = st.none() | st.builds(
    launched,
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 3),
    missing=st.lists(st.integers(0, 2), max_size=2, unique=True),
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(GPU, max_size=4), ANSWER), max_size=20))
def test_a_job_with_a_working_gpu_is_never_hung_and_begins_are_never_later_than_now(
    looks: list[tuple[list[GpuReading], ras.RasAnswer | None]],
) -> None:
    memory, now = JobMemory(), 0.0
    for of, answer in looks:
        now += 60.0
        look = Look(now, tuple(of), answer, {1: Process(busy=False, stopped=True)})
        memory, found = judge.advance(memory, look, Limits(120.0, 120.0, 120.0))
        assert found.since <= now
        assert found.state is not JobActivity.HUNG or judge.suspect(look.gpus)
