"""Reports of jobs, asked over a connection to the controller (a double)."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.job_reports import JobReports
from tests.jobs.report.made_up import answer, known


class Controller:
    """A double of the connection: what the two commands print."""

    def __init__(self, jobs: Any, query: Any = None, status: int = 0, errors: str = "") -> None:
        self.jobs, self.query, self.status, self.errors = jobs, query, status, errors
        self.asked: list[str] = []
        self.hosts: list[str | None] = []

    def ask(self, command: str, *, host: str | None = None, text: str = "", timeout: float = 0) -> process.Completed:
        self.hosts.append(host)
        assert timeout > 60
        self.asked.append(command)
        if "monitor query" in command:
            assert json.loads(text)["queries"]
            if self.query is None:
                raise ToolError("the controller does not answer within 120 s")
            return process.Completed((), 0, json.dumps(self.query), "")
        return process.Completed((), self.status, json.dumps(self.jobs) if self.jobs else "", self.errors)


def reports(controller: Controller) -> JobReports:
    return JobReports(cast(ControllerConnection, controller))


def test_a_report_comes_from_two_questions() -> None:
    controller = Controller(known(), answer(known()))
    found = reports(controller).report("12")
    assert found.plots
    assert [command.partition("monitor ")[2] for command in controller.asked] == ["jobs -- 12", "query"]


def test_prometheus_is_asked_on_its_own_host() -> None:
    controller = Controller(known(), answer(known()))
    assert JobReports(cast(ControllerConnection, controller), "demo-login-1").report("12").plots
    assert controller.hosts == [None, "demo-login-1"]


def test_a_prometheus_that_takes_too_long_costs_the_plots_alone() -> None:
    found = reports(Controller(known())).report("12")
    assert any("does not answer within" in each for each in found.missing)


def test_a_number_is_no_command() -> None:
    controller = Controller(known(), answer(known()))
    reports(controller).report("12; rm -rf /")
    assert "'12; rm -rf /'" in controller.asked[0]


def test_a_job_that_nobody_knows() -> None:
    errors = "gpucluster-agent monitor: Slurm's accounting has no job 99\nSee: gpucluster ssh -- sacct\n"
    with pytest.raises(InputError, match="has no job 99"):
        reports(Controller(None, status=2, errors=errors)).report("99")


def test_a_controller_of_an_earlier_release() -> None:
    errors = "usage: gpucluster-agent monitor\ngpucluster-agent monitor: error: invalid choice: 'jobs'\n"
    with pytest.raises(ToolError) as caught:
        reports(Controller(None, status=2, errors=errors)).report("99")
    assert "gpucluster apply" in caught.value.hint
