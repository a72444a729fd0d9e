"""How long an apply will take: from comparable runs, and for a first apply from what was measured."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpucluster.lifecycle import duration
from gpucluster.lifecycle.duration import Duration, Work, WorkKind, expected, percentile, shipped
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import run as runs
from gpucluster.workspace.run_history import PastRun, past_runs

FIGURES = (
    {
        "cloud": "local",
        "nodes": 2,
        "seconds": [100.0, 120.0, 110.0],
        "date": date(2026, 11, 29),
        "source": "a benchmark",
    },
    {"cloud": "local", "nodes": 16, "seconds": [300.0], "date": date(2026, 11, 29), "source": "another"},
)


def _run(elapsed: float | None, kind: str = "hosts", hosts: int = 1, **more: Any) -> PastRun:
    values = {"command": "apply", "status": "success", "work": {"kind": kind, "hosts": hosts}, **more}
    return PastRun("x", started="", elapsed=elapsed, **values)


@pytest.mark.parametrize(
    ("first", "hosts", "resources", "configuration", "kind"),
    [
        (True, 3, True, True, "first apply"),
        (False, 1, True, True, "hosts"),
        (False, 0, True, True, "resources"),
        (False, 0, False, True, "configuration"),
        (False, 0, False, False, "nothing"),
    ],
)
def test_the_kind_of_work_is_its_largest_part(
    first: bool, hosts: int, resources: bool, configuration: bool, kind: str
) -> None:
    work = Work.of(first=first, hosts=hosts, resources=resources, configuration=configuration)
    assert work.to_dict() == {"kind": kind, "hosts": hosts}


def test_only_comparable_runs_count() -> None:
    past = [
        _run(60.0),
        _run(80.0, hosts=2),
        _run(500.0, hosts=16),
        _run(9.0, kind="configuration"),
        _run(1.0, status="failed"),
        _run(2.0, command="replace"),
        _run(None),
        _run(3.0, work={}),
    ]
    found = expected(Work(WorkKind.HOSTS, 1), past, cloud="local")
    assert (found.runs, found.median_s, found.p90_s, found.work) == (2, 70.0, 80.0, "hosts")
    # None had so many hosts: all of the kind are better than nothing.
    assert expected(Work(WorkKind.HOSTS, 100), past, cloud="local").runs == 3
    assert expected(Work(WorkKind.CONFIGURATION), past, cloud="oci").median_s == 9.0
    assert expected(Work(WorkKind.RESOURCES), past, cloud="local") == Duration(
        "resources", 0, source="no comparable runs of this cluster on this machine"
    )


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([5.0], 0.9, 5.0), ([3.0, 1.0, 2.0], 0.9, 3.0), (list(range(1, 11)), 0.9, 9), (list(range(1, 11)), 0.5, 5)],
)
def test_a_percentile_is_a_value_that_occurred(values: list[float], share: float, found: float) -> None:
    assert percentile(values, share) == found


def test_a_first_apply_has_the_figures_of_the_nearest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "shipped", lambda: FIGURES)
    small = expected(Work(WorkKind.FIRST, 4), [_run(1.0, kind="first apply")], cloud="local")
    assert (small.runs, small.median_s, small.p90_s) == (3, 110.0, 120.0)
    assert small.source == "measured with 2 nodes on 2026-11-29: a benchmark"
    assert expected(Work(WorkKind.FIRST, 12), (), cloud="local").median_s == 300.0
    assert expected(Work(WorkKind.FIRST, 4), (), cloud="oci") == Duration(
        "first apply", 0, source="no first apply was measured with provider oci"
    )


def test_the_shipped_figures_are_dated_and_have_their_source() -> None:
    for each in shipped():
        assert set(each) == {"cloud", "nodes", "seconds", "date", "source"}
        assert isinstance(each["date"], date)
        assert all(took > 0 for took in each["seconds"])
        assert each["source"]


def test_the_run_log_keeps_what_a_run_had_to_do(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / ".gpucluster")
    with runs.run("apply", paths, lambda _: None) as run:
        run.work = Work(WorkKind.HOSTS, 2).to_dict()
    with runs.run("apply", paths, lambda _: None):
        pass
    assert [each.work for each in past_runs(paths)] == [{}, run.work]
    (found,) = [each for each in past_runs(paths) if each.work]
    assert found.to_dict()["work"] == {"kind": "hosts", "hosts": 2}
