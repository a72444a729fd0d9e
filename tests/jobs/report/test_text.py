"""A report as text for a terminal."""

from __future__ import annotations

from gpucluster.jobs.report import facts
from gpucluster.jobs.report.build import build, request
from gpucluster.jobs.report.text import text
from tests.jobs.report.made_up import known, report, row
from tests.jobs.report.test_build import page, said


def test_a_job_that_has_not_begun() -> None:
    pending = row(state="PENDING", started=None, ended=None, elapsed=0, node_list=[], gpus=0)
    raw = known(components=[pending], records=[], steps=[])
    assert request(facts.read(raw)) == []
    found = report(raw, {})
    assert "The job has not begun: it is PENDING." in said(found)
    assert page(found)


def test_nothing_at_all() -> None:
    found = build(facts.read({"id": "12"}), {})
    assert text(found)
    assert page(found)


def test_an_array_points_to_its_tasks() -> None:
    tasks = [row(id=str(at), shown_as=f"12_{at}") for at in range(700)]
    raw = known(tasks=tasks)
    assert request(facts.read(raw)) == []
    found = report(raw, {})
    assert any("array" in each for each in found.missing)
    assert "200 more are not shown" in page(found)
