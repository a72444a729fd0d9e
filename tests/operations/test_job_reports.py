"""Reports of jobs, asked over a connection to the controller (a double)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.operations.job_reports import JobReports
from gpucluster.spec import loads
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.jobs.report.made_up import START, answer, known
from tests.spec.spec_texts import LOCAL

ON_LOGIN = LOCAL + "login: {count: 1}\nmonitoring: {enabled: true, host: login-1}\n"


def controller(jobs: Any, query: Any = None, status: int = 0, errors: str = "") -> ControllerDouble:
    """What the two commands print; without a second answer, Prometheus does not answer in time."""

    def of(asked: Asked) -> process.Completed:
        assert asked.timeout > 60
        if "monitor query" not in asked.command:
            return said(json.dumps(jobs) if jobs else "", status, errors)
        assert json.loads(asked.text)["queries"]
        if query is None:
            raise ToolError("the controller does not answer within 120 s")
        return said(json.dumps(query))

    return ControllerDouble(of)


def reports(double: ControllerDouble, text: str = LOCAL) -> JobReports:
    return JobReports(loads(text, "cluster.yml"), double)  # type: ignore[arg-type]


def test_a_report_comes_from_two_questions() -> None:
    double = controller(known(), answer(known()))
    found = reports(double).report("12")
    assert found.plots
    assert [command.partition("monitor ")[2] for command in double.commands] == ["jobs -- 12", "query"]


def test_prometheus_is_asked_on_its_own_host() -> None:
    double = controller(known(), answer(known()))
    assert reports(double, ON_LOGIN).report("12").plots
    assert [asked.host for asked in double.asked] == [None, "demo-login-1"]


def test_a_prometheus_that_takes_too_long_costs_the_plots_alone() -> None:
    found = reports(controller(known())).report("12")
    assert any("does not answer within" in each for each in found.missing)


def test_what_the_watcher_reports_of_a_job_that_runs() -> None:
    rank = {"state": "hung", "rank": "2", "process": "1399", "host": "gpu-1", "collective": "AllReduce"}
    results = {
        "watch:stuck": [{"labels": rank, "values": [[START, 1.0]]}],
        "watch:wasted": [{"labels": {}, "values": [[START, 3.25]]}],
    }
    double = ControllerDouble(said(json.dumps({"prometheus": True, "results": results, "errors": {}})))
    assert reports(double, ON_LOGIN).watched("12") == (
        "The job is hung: rank 2, process 1399 on gpu-1, is behind in AllReduce.",
        "GPUs without a process have cost 3.2 GPU hours.",
    )
    (asked,) = double.asked
    assert (asked.host, asked.timeout < 60) == ("demo-login-1", True)
    assert all('job_id="12"' in each["expr"] for each in json.loads(asked.text)["queries"])


@pytest.mark.parametrize(
    "answer",
    [said("", 1, "no"), said("[]"), said('{"results": []}'), said('{"results": {"watch:stuck": 1}}'), said("{}")],
    ids=["an error", "a list", "results are a list", "a number", "nothing"],
)
def test_without_an_answer_the_watcher_reports_nothing(answer: process.Completed) -> None:
    assert reports(ControllerDouble(answer)).watched("12") == ()


def test_a_number_is_not_a_command() -> None:
    double = controller(known(), answer(known()))
    reports(double).report("12; rm -rf /")
    assert "'12; rm -rf /'" in double.commands[0]


def test_a_job_that_is_not_known() -> None:
    errors = "gpucluster-agent monitor: Slurm's accounting has no job 99\nSee: gpucluster ssh -- sacct\n"
    with pytest.raises(InputError, match="has no job 99"):
        reports(controller(None, status=2, errors=errors)).report("99")


def test_a_controller_of_an_earlier_release() -> None:
    errors = "usage: gpucluster-agent monitor\ngpucluster-agent monitor: error: invalid choice: 'jobs'\n"
    with pytest.raises(ToolError) as caught:
        reports(controller(None, status=2, errors=errors)).report("99")
    assert "gpucluster apply" in caught.value.hint
