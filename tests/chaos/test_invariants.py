"""What must hold after a disturbance: each way in which it may not hold is seen."""

from __future__ import annotations

import pytest

from tests.chaos import invariants
from tests.chaos.invariants import Job, Kind, Row

SHORT = Job("1", Kind.SHORT, 3, 1000.0)
RUNNING = Job("2", Kind.RUNNING, 0, 1000.0)
WAITING = Job("3", Kind.WAITING, 0, 1000.0)
JOBS = (SHORT, RUNNING, WAITING)
QUEUE = {"2": "RUNNING", "3": "PENDING"}
SUBMIT = 1000.0
ROWS = (
    Row("1", "FAILED", "3:0", SUBMIT),
    Row("2", "RUNNING", submit=SUBMIT),
    Row("3", "PENDING", submit=SUBMIT),
)


def changed(*rows: Row) -> list[Row]:
    """The good accounting with other rows for the jobs of these."""
    return [*(row for row in ROWS if row.job not in {each.job for each in rows}), *rows]


def test_what_is_as_it_should_be() -> None:
    assert invariants.violations(JOBS, QUEUE, ROWS, ended=()) == []


def test_the_number_of_a_lost_job_is_given_again() -> None:
    rows = [*ROWS, Row("1", "PENDING", submit=SUBMIT - 60)]
    assert invariants.violations(JOBS, QUEUE, rows, ended=()) == []


def test_a_job_that_is_ended_has_its_own_exit_code() -> None:
    rows = changed(Row("2", "COMPLETED", submit=SUBMIT))
    assert invariants.violations(JOBS, {"3": "PENDING"}, rows, ended={"2"}) == []


@pytest.mark.parametrize(
    ("queue", "rows", "ended", "message"),
    [
        (QUEUE, ROWS[1:], (), "job 1 (short): neither squeue nor sacct knows it"),
        ({"3": "PENDING"}, [ROWS[0], ROWS[2]], (), "job 2 (running): neither squeue nor sacct knows it"),
        (QUEUE, ROWS[:2], (), "job 3 (waiting): 0 rows in the accounting: []"),
        (QUEUE, [*ROWS, Row("1", "NODE_FAIL", submit=SUBMIT)], (), "job 1 (short): 2 rows"),
        (
            QUEUE,
            changed(Row("1", "COMPLETED", submit=SUBMIT)),
            (),
            "job 1 (short): COMPLETED 0:0, and its own end is FAILED 3:0",
        ),
        (QUEUE, changed(Row("1", "FAILED", "0:9", SUBMIT)), (), "its own end is FAILED 3:0"),
        (
            QUEUE,
            changed(Row("1", "RUNNING", submit=SUBMIT)),
            (),
            "job 1 (short): RUNNING in the accounting, and the queue does not",
        ),
        ({"3": "PENDING"}, ROWS, (), "job 2 (running): RUNNING in the accounting, and the queue does not have it"),
        ({**QUEUE, "2": "PENDING"}, ROWS, (), "job 2 (running): it does not run any more: PENDING"),
        (
            QUEUE,
            changed(Row("2", "NODE_FAIL", submit=SUBMIT)),
            (),
            "job 2 (running): NODE_FAIL in the accounting, and RUNNING in",
        ),
        (QUEUE, ROWS, ("2",), "job 2 (running): RUNNING 0:0, and its own end is COMPLETED 0:0"),
        (
            {**QUEUE, "3": "RUNNING"},
            changed(Row("3", "RUNNING", submit=SUBMIT)),
            (),
            "job 3 (waiting): it does not wait any more",
        ),
        (
            {"2": "RUNNING"},
            changed(Row("3", "CANCELLED", submit=SUBMIT)),
            (),
            "job 3 (waiting): it does not wait any more: CANCELLED",
        ),
    ],
)
def test_what_is_wrong_is_named(queue: dict[str, str], rows: list[Row], ended: tuple[str, ...], message: str) -> None:
    found = invariants.violations(JOBS, queue, rows, ended=ended)
    assert any(message in each for each in found), found


def test_a_row_that_is_gone_or_has_changed_is_named() -> None:
    before = [Row("1", "FAILED", "3:0"), Row("4", "COMPLETED", end="2026-11-01T10:00:00"), Row("2", "RUNNING")]
    after = [Row("4", "COMPLETED", end="2026-11-01T10:00:05"), Row("2", "COMPLETED")]
    found = invariants.lost_rows(before, after)
    assert len(found) == 2
    assert "job='1'" in found[0]
    assert "job='4'" in found[1]


def test_a_script_that_ran_twice_is_named() -> None:
    starts = invariants.parse_starts("10 1000\n9 1001\n10 1002\n9 1003\n8 1004\n7\n")
    assert starts[-1] == ("8", 1004.0)
    assert invariants.doubled(starts) == ["9", "10"]


def test_jobs_are_settled_whose_changes_are_not_of_the_last_seconds() -> None:
    gone = 2000.0
    early, late = gone - invariants.UNSAVED_S - 1, gone - invariants.UNSAVED_S + 1
    jobs = [Job(str(number), Kind.SHORT, 0, early) for number in range(1, 5)] + [Job("5", Kind.SHORT, 0, late)]
    ran = {"1": early, "2": late, "3": gone + 1, "5": gone + 60}  # the script of 4 has not run
    assert [job.id for job in invariants.settled(jobs, gone, ran)] == ["1"]
    assert [job.id for job in invariants.settled(jobs, gone, {**ran, "3": gone + 60})] == ["1", "3"]
    assert invariants.settled(jobs, None, {}) == jobs


def test_jobs_of_the_last_seconds_are_sorted() -> None:
    jobs = [Job(str(number), Kind.SHORT) for number in range(1, 6)]
    rows = [
        Row("1", "COMPLETED"),
        Row("2", "NODE_FAIL"),
        Row("2", "COMPLETED"),
        Row("4", "PENDING"),
        Row("5", "PENDING"),
    ]
    assert invariants.of_last_seconds(jobs, {"5": "PENDING"}, rows) == {
        "kept": ["1", "5"],
        "lost": ["3"],
        "left in the accounting": ["4"],
        "with several rows": ["2"],
    }


def test_what_a_command_reports_as_lost() -> None:
    messages = ["jobs are lost: 70, 71: submitted in the last seconds", "it has the state of the controller before it"]
    assert invariants.named_as_lost(messages) == {"70", "71"}
    assert invariants.named_as_lost(messages[1:]) == set()


def test_what_the_programs_print() -> None:
    assert invariants.parse_queue("2|RUNNING\n3|PENDING\n") == QUEUE
    text = "1|FAILED|3:0|1000|1001|1002\n2|CANCELLED by 1000|0:15|1000|None|Unknown\n"
    assert invariants.parse_rows(text) == [
        Row("1", "FAILED", "3:0", 1000.0, "1001", "1002"),
        Row("2", "CANCELLED", "0:15", 1000.0, "None", "Unknown"),
    ]
    assert invariants.parse_jobs("7|3|1000\n8|4|10\n|5|1001\n9|6", Kind.SHORT) == [
        Job("7", Kind.SHORT, 3, 1000.0),
        Job("8", Kind.SHORT, 4, 10.0),
    ]
