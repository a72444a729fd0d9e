"""The output for users and for programs."""

from __future__ import annotations

import io
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucluster.cli.output import JsonLines, LiveTerminal, Plain, reporter_for, seconds, table, wrapped
from gpucluster.errors import InputError, InputFinding
from gpucluster.events import Event


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


def test_columns_of_a_table_stand_below_each_other_with_japanese_names() -> None:
    assert table([["山田", "x"], ["Suzuki", "y"]], ["NAME", "WHAT"]).splitlines() == [
        "NAME    WHAT",
        "山田    x",
        "Suzuki  y",
    ]


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


def test_the_live_line_has_what_is_left_of_the_last_run_s_seconds() -> None:
    terminal = LiveTerminal()
    try:
        terminal(Event("phase", "ansible", "started", data={"last": 28.4}))
        assert "about 28 s left" in terminal.status_line()
        terminal(Event("phase", "verify", "started"))
        assert "left" not in terminal.status_line()
    finally:
        terminal.close()


def test_the_live_line_counts_tasks_as_the_last_run_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gpucluster.cli.output.time.monotonic", lambda: now)
    terminal = LiveTerminal()

    def task(number: int) -> str:
        terminal(Event("task", "slurm : Start slurmd", "ok", data={"host": "compute-1", "number": number}))
        return terminal.status_line()

    try:
        # The last run had nothing to do: its seconds are not those of tasks.
        terminal(Event("phase", "ansible", "started", data={"last": 2.0, "tasks": {"number": 120, "seconds": 60.0}}))
        now = 110.0
        assert task(40).startswith("ansible  10 s, 40 of 120, about 40 s left")
        assert "40 of 120" in task(39), "a slower host ends an earlier task later"
        assert "of 120" not in task(121)
        terminal(Event("phase", "ansible", "started", data={"last": 60.0}))
        assert "of" not in task(1), "there was no run with tasks"
    finally:
        terminal.close()


def test_a_line_in_a_log_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    out = io.StringIO()
    Plain(out, clock=True)(Event("phase", "ansible", "started", time=3661.0))
    assert out.getvalue() == "01:01:01 ansible\n"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("  x one two three four five", ["  x one two three", "      four five"]),
        ("short", ["short"]),
        ("", [""]),
        ("one\n\ntwo", ["one", "", "two"]),
        # A path or a command stays whole, so that it can be copied.
        ("see /a/very/long/path/that/does/not/fit now", ["see", "    /a/very/long/path/that/does/not/fit", "    now"]),
        ("10.0.0.0/16 and well-known-words are here", ["10.0.0.0/16 and", "    well-known-words", "    are here"]),
        # Each of these characters takes two columns.
        ("山田太郎 鈴木花子 added", ["山田太郎 鈴木花子", "    added"]),
        ("  a  b    c  d    e  f  g  h", ["  a  b    c  d    e", "      f  g  h"]),
    ],
)
def test_long_lines_are_broken_at_spaces(text: str, lines: list[str]) -> None:
    assert wrapped(text, 20).split("\n") == lines


@settings(max_examples=200)
@given(text=st.text(alphabet="ab \n-", max_size=200), width=st.integers(40, 120))
def test_wrapping_loses_no_word(text: str, width: int) -> None:
    assert wrapped(text, width).split() == text.split()


@pytest.mark.parametrize(
    ("text", "verbatim", "shown"),
    [
        ("one two three four five six", False, "one two three four\n    five six"),
        # What is to be copied stays whole.
        ("Log in:\n  ssh -F /tmp/config alice@controller", False, "Log in:\n  ssh -F /tmp/config alice@controller"),
        ("  .venv/bin/gpucluster ssh -- hostname", False, "  .venv/bin/gpucluster ssh -- hostname"),
        ("one two three four five six", True, "one two three four five six"),
    ],
)
def test_lines_of_a_result_are_broken_at_spaces_but_for_commands_and_files(
    text: str, verbatim: bool, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpucluster.cli.output._NARROWEST", 20)
    monkeypatch.setenv("COLUMNS", "20")
    LiveTerminal().result({}, text, verbatim=verbatim)
    assert capsys.readouterr().out.rstrip("\n") == shown


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


def test_a_resource_that_took_no_time_has_no_duration() -> None:
    out = io.StringIO()
    reporter = Plain(out)
    reporter(Event("resource", "subnet", "created", elapsed=0.01))
    reporter(Event("resource", "controller", "created", elapsed=1.0))
    assert out.getvalue().splitlines() == ["  + subnet created", "  + controller created  1.0 s"]
