"""The output for users and for programs."""

from __future__ import annotations

import io
import json

import pytest

from gpucluster.cli.output import JsonLines, LiveTerminal, Plain, reporter_for, seconds, table
from gpucluster.cli.summaries import status_text, summary
from gpucluster.errors import InputError, InputFinding
from gpucluster.events import Event
from gpucluster.lifecycle.result import RunResult
from gpucluster.workspace.run_log import RunStatus


@pytest.mark.parametrize(("value", "text"), [(0.44, "0.4 s"), (12.4, "12 s"), (65, "1 min 05 s"), (59.7, "1 min 00 s")])
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_json_is_one_object_a_line_and_the_result_is_last() -> None:
    out = io.StringIO()
    reporter = JsonLines(out)
    reporter(Event("phase", "terraform", "started"))
    reporter.result({"command": "apply", "status": "success"}, "for people")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["phase", "result"]
    assert lines[-1]["data"]["status"] == "success"


def test_a_json_error_carries_exit_code_and_findings() -> None:
    out = io.StringIO()
    JsonLines(out).error(InputError("bad", findings=[InputFinding("c.yml", 3, 5, "name", "is wrong", "fix it")]))
    data = json.loads(out.getvalue())["data"]
    assert data["exit_code"] == 2
    assert data["findings"][0]["line"] == 3


def test_a_task_on_many_hosts_is_one_line() -> None:
    out = io.StringIO()
    reporter = Plain(out)
    for host in ("a", "b", "c"):
        reporter(Event("task", "slurm : Start slurmd", "ok", data={"host": host}))
    assert out.getvalue().splitlines() == ["    slurm : Start slurmd"]


def test_a_failed_task_names_host_task_and_reason() -> None:
    out = io.StringIO()
    Plain(out)(Event("task", "nfs : Mount", "failed", "no route", data={"host": "compute-1"}))
    assert out.getvalue().strip() == "x compute-1: nfs : Mount: no route"


def test_table() -> None:
    assert table([["a", "bb"]], ["ONE", "TWO"]) == "ONE  TWO\na    bb"


def test_verbose_shows_every_host_of_a_task_and_what_is_begun() -> None:
    out = io.StringIO()
    reporter = Plain(out, verbose=True)
    for host in ("a", "b"):
        reporter(Event("task", "slurm : Start slurmd", "ok", data={"host": host}))
    reporter(Event("resource", "module.network.oci_core_vcn.this[0]", "creating"))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines[:2] == ["a: slurm : Start slurmd: ok", "b: slurm : Start slurmd: ok"]
    assert "oci_core_vcn.this[0] creating" in lines[2]


def test_the_live_clock_moves_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gpucluster.cli.output.time.monotonic", lambda: now)
    terminal = LiveTerminal()
    try:
        terminal(Event("phase", "terraform", "started"))
        now = 107.0
        assert terminal.status_line().startswith("terraform  7.0 s")
    finally:
        terminal.close()


STATUS = {
    "name": "demo", "state": "partial", "resources": {"instance": 3, "vcn": 1}, "pending": ["not configured: a"],
    "hosts": [{"name": "a", "address": "10.0.0.2", "instance": "RUNNING"}], "slurm": [], "kubernetes": [],
    "certificates": None,
    "maintenance": None,
    "autoscaler": None,
    "running": None,
    "last_change": {
        "run": "1", "command": "apply", "status": "killed", "phase": "ansible", "started": "2026-01-01T11:00:00+00:00",
    },
    "last_run": {"run": "2", "command": "plan", "status": "success", "started": "2026-01-01T12:00:00+00:00"},
    "sources": {
        "cloud": {"time": "2026-01-01T12:30:00+00:00", "error": ""},
        "hosts": {"time": "2026-01-01T11:05:00+00:00", "error": ""},
        "slurm": {"time": "2026-01-01T12:30:01+00:00", "error": "the controller can't be reached"},
    },
}  # fmt: skip


def test_the_status_shows_what_is_pending_who_did_not_answer_and_since_when_it_knows_the_rest() -> None:
    lines = status_text(STATUS).splitlines()
    assert lines[0] == "cluster demo: partial, 3 instances and 1 other resource in the cloud"
    assert "! not configured: a" in lines
    assert "! Slurm: the controller can't be reached" in lines
    assert "as of 2026-01-01 12:30:00 UTC: the cloud" in lines
    assert "as of 2026-01-01 11:05:00 UTC: the hosts' addresses" in lines
    assert lines[-2:] == [
        "last change: apply killed in the phase ansible, started 2026-01-01 11:00:00 UTC",
        "last run: plan success, started 2026-01-01 12:00:00 UTC",
    ]


def test_the_status_of_a_run_that_works_now_does_not_ask_for_another_one() -> None:
    running = {"pid": 7, "host": "desk", "command": "apply", "since": 1.0}
    text = status_text({**STATUS, "running": running})
    assert "running now: gpucluster apply, pid 7 on desk" in text
    assert "Continue with" not in text


def test_a_terminal_that_can_not_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(reporter_for("auto"), LiveTerminal)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(reporter_for("auto"), Plain)


def test_what_is_only_a_note_in_terraforms_state_is_not_a_line() -> None:
    out = io.StringIO()
    for status in ("created", "failed"):
        Plain(out)(Event("resource", 'terraform_data.image["controller"]', status, elapsed=0.0))
    assert out.getvalue().splitlines() == ['  x terraform_data.image["controller"] failed']


def test_a_role_that_took_no_time_is_not_listed() -> None:
    result = RunResult("apply", RunStatus.SUCCESS, 3.0, {"ansible": 2.0}, roles={"slurm": 1.5, "nvidia": 0.01})
    assert "role slurm" in summary(result)
    assert "nvidia" not in summary(result)


def test_a_resource_that_took_no_time_has_no_duration() -> None:
    out = io.StringIO()
    reporter = Plain(out)
    reporter(Event("resource", "subnet", "created", elapsed=0.01))
    reporter(Event("resource", "controller", "created", elapsed=1.0))
    assert out.getvalue().splitlines() == ["  + subnet created", "  + controller created  1.0 s"]
