"""Days and months of a time zone, and rows of a report."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpucluster.cost import report
from gpucluster.cost.model import Hardware, HostInterval, JobRun, Share, Use

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0
HOST = HostInterval("id", "gpu-1", "gpu", {"shape": "X"}, Hardware(), 0.0)
RUN = JobRun("7", "alice", "vision", ["gpu-1"], Hardware(), 0.0)


def moment(*parts: int) -> float:
    return datetime(*parts, tzinfo=BERLIN).timestamp()  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(("month", "day", "hours"), [(3, 29, 23), (10, 25, 25), (6, 1, 24)])
def test_a_day_has_the_hours_that_its_clock_has(month: int, day: int, hours: int) -> None:
    found = report.days((moment(2026, month, day), moment(2026, month, day + 1) + 1), BERLIN)
    assert (found.begins[1] - found.begins[0]) / HOUR == hours
    assert found.name_at(found.begins[1] - 1) == f"2026-{month:02}-{day:02}"


def test_a_month_begins_and_ends_in_its_zone() -> None:
    begin, end = report.month(moment(2026, 12, 31, 23, 59), BERLIN)
    assert (begin, end) == (moment(2026, 12, 1), moment(2027, 1, 1))
    assert report.month(moment(2026, 12, 31, 23, 59), UTC)[0] != begin


def test_rows_are_the_dearest_first_and_days_in_order() -> None:
    shares = [
        Share(0.0, HOUR, HOST, Use.JOB, 0.5, 10.0, RUN),
        Share(0.0, HOUR, HOST, Use.UNUSED, 0.5, 10.0),
        Share(HOUR, 2 * HOUR, HOST, Use.IDLE, 1.0, 10.0),
        Share(2 * HOUR, 3 * HOUR, HOST, Use.IDLE, 1.0, None),
    ]
    rows = report.summarize(shares, "user")
    assert [(row.key, row.total, row.unpriced_hours) for row in rows] == [("-", 15.0, 1.0), ("alice", 5.0, 0.0)]
    assert [row.key for row in report.summarize(shares, "job")] == ["-", "7"]
    assert rows[1].to_dict()["job"] == 5.0
    assert (report.total(rows).total, report.total(rows).hours[Use.IDLE]) == (20.0, 2.0)
    calendar = report.days((0.0, 3 * HOUR), UTC)
    assert [row.key for row in report.summarize(shares, "day", calendar)] == ["1970-01-01"]


def test_the_part_of_a_job_in_which_its_gpus_had_no_process() -> None:
    run = JobRun("7", "alice", "vision", ["gpu-1", "gpu-2"], Hardware(gpus=8), 0.0)
    shares = [Share(0.0, HOUR, HOST, Use.JOB, 0.5, 10.0, run), Share(0.0, HOUR, HOST, Use.JOB, 0.5, 10.0, run)]
    assert report.held_parts({"7": 2.0, "8": 1.0}, shares) == {"7": 0.25}
    assert report.held_parts({"7": 20.0}, shares) == {"7": 1.0}
    assert report.held_parts({"7": 1.0}, [Share(0.0, HOUR, HOST, Use.JOB, 1.0, 1.0, RUN)]) == {}
    (row,) = report.summarize(shares, "job", held={"7": 0.25})
    assert (row.total, row.held, row.to_dict()["held"]) == (10.0, 2.5, 2.5)
