"""A terminal obeys what it is sent: no text of Slurm, of hosts, of OCI, of Terraform or of Ansible may command it.

One module prints (`gpucluster/cli/output.py`). Each way out of it gets hostile texts here, and nothing else prints.
"""

from __future__ import annotations

import ast
import io
import itertools
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpucluster.cli
from gpucluster import errors
from gpucluster.cli.debug import debugging
from gpucluster.cli.output import JsonLines, LiveTerminal, Plain, findings, say, table
from gpucluster.cli.plan_report import plan_text
from gpucluster.cli.summaries import status_text
from gpucluster.errors import GpuClusterError, InputError, InputFinding, PreflightError, PreflightFinding
from gpucluster.events import Event, EventKind
from gpucluster.handover.configuration_diff import ConfigurationDifference
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import Scaling
from gpucluster.terraform.plan import ResourceChange
from gpucluster.text import terminal
from tests.verdict.samples import CLUSTER, facts, verdict
from tests.waiting import PATIENCE_S

HOSTILE = (
    "\x1b]0;PWNED\x07", "\x1b[31mred", "\x1b[2J\x1b[H", "\x9b31m", "\x9d0;x\x9c", "\x1bP1$r\x1b\\", "\r+ all is well",
    "back\b\b\b\b", "\x00\x07\x0b\x0c\x0e\x0f\x7f", "\u202eevil", "\u2066x\u2069", "\u200b\ufeff", "\u2028line",
    "\x85next", "\ud800", "\U000e0041tag", "\n✓ node_state: all nodes are up",
)  # fmt: skip
ALL = "".join(HOSTILE)
_LINES = {"\n", "\t"}


def commands(text: str) -> list[str]:
    """What a terminal would obey, or what hides other text."""
    return [sign for sign in text if not sign.isprintable() and sign not in _LINES]


def test_the_texts_are_hostile() -> None:
    assert all(commands(text) or "\n" in text for text in HOSTILE)


@given(st.text(st.characters(exclude_categories=())))
def test_lines_and_tabs_are_all_that_stays(text: str) -> None:
    shown = terminal(text)
    assert commands(shown) == []
    shown.encode()
    assert shown.count("\n") == text.count("\n")
    assert terminal(shown) == shown


EVENTS = [
    Event(kind, name, status, message, elapsed=1.0, data={"host": host})
    for kind, (name, status, message, host) in itertools.product(
        EventKind,
        [(ALL, "failed", "x", "h"), ("x", "failed", ALL, "h"), ("x", "failed", "x", ALL), ("x", ALL, "x", "h")],
    )
]


@pytest.mark.parametrize("verbose", [False, True])
def test_an_event_in_lines(verbose: bool) -> None:
    out = io.StringIO()
    reporter = Plain(out, verbose=verbose)
    for event in EVENTS:
        reporter(event)
    assert "PWNED" in out.getvalue()
    assert commands(out.getvalue()) == []
    assert "\n✓" not in out.getvalue()


def _terminal(write: Callable[[LiveTerminal], object]) -> str:
    """What a live reporter sends to a terminal, without what the reporter itself commands."""
    from rich.console import Console

    reporter = LiveTerminal(verbose=True)
    out = io.StringIO()
    # No colours and no movement: what is left comes from the text.
    reporter._console = Console(file=out, highlight=False, soft_wrap=True, color_system=None)
    try:
        write(reporter)
    finally:
        reporter.close()
    return out.getvalue()


def test_an_event_on_a_live_terminal() -> None:
    def write(reporter: LiveTerminal) -> None:
        for event in EVENTS:
            reporter(event)
            assert commands(reporter.status_line()) == []

    shown = _terminal(write)
    assert "PWNED" in shown
    assert commands(shown) == []
    assert "\n✓" not in shown


def test_a_result_on_a_live_terminal() -> None:
    shown = _terminal(lambda reporter: reporter.result({}, f"first\n{ALL}"))
    assert "PWNED" in shown
    assert commands(shown) == []


def _errors() -> Iterator[GpuClusterError]:
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, GpuClusterError):
            try:
                yield kind(ALL, where=ALL, hint=ALL)
            except TypeError:  # it needs more, and reports it with the text of its base
                continue
    yield InputError(ALL, findings=[InputFinding(ALL, 1, 1, ALL, ALL, ALL)])
    yield PreflightError(ALL, findings=[PreflightFinding("error", ALL, ALL, ALL)])


@pytest.mark.parametrize("error", list(_errors()), ids=lambda error: type(error).__name__)
def test_an_error(error: GpuClusterError, capsys: pytest.CaptureFixture[str]) -> None:
    Plain().error(error)
    LiveTerminal().error(error)
    shown = capsys.readouterr().err
    assert shown.count("PWNED") >= 2
    assert commands(shown) == []


def test_a_table_has_one_line_for_each_row() -> None:
    rows = [[ALL, "x"], ["x", ALL]]
    assert len(table(rows, ["A", "B"]).split("\n")) == 1 + len(rows)
    assert commands(table(rows, [ALL, "B"])) == []
    assert len(findings([PreflightFinding("error", ALL, ALL, ALL)]).split("\n")) == 3


def _status() -> dict[str, Any]:
    source = {"time": "2026-01-01T12:30:00+00:00", "error": ALL}
    return {
        "name": "demo", "state": "partial", "resources": {"instance": 1}, "pending": [ALL], "running": None,
        "hosts": [{"name": ALL, "address": ALL, "instance": ALL}],
        "slurm": [{"node": ALL, "state": ALL, "partition": ALL}],
        "kubernetes": [{"node": ALL, "state": ALL, "pool": ALL, "version": ALL}],
        "certificates": None, "maintenance": None, "autoscaler": {"error": ALL}, "last_change": None, "last_run": None,
        "service": {"in_service": ALL, "standby": ALL, "current": False, "begun": False},
        "sources": {"cloud": source, "hosts": source, "slurm": source},
    }  # fmt: skip


def test_status_and_plan() -> None:
    values = {"display_name": (ALL, f"x{ALL}"), "list": ([ALL], {"a": ALL})}
    change = ResourceChange(f"module.pool[{ALL!r}].oci_core_instance.this", "update", ALL, values=values)
    plan = ClusterPlan(
        (change,),
        changes_outputs=False,
        hosts=Scaling({}),
        configuration=(ConfigurationDifference(ALL, "add", ALL, ALL, ALL),),
    )
    for text in (status_text(_status()), plan_text(plan)):
        shown = terminal(text)
        assert "PWNED" in shown
        assert commands(shown) == []
        assert "\n✓" not in shown  # each note is of one line, so none is forged


def test_a_drain_reason_of_slurm() -> None:
    """By `verify`: root of a node sets the reason."""
    reported = facts(CLUSTER)
    head = next(name for name, each in reported.items() if each.get("sinfo"))
    reported[head]["sinfo"][0].update(state="drained", reason=ALL)
    found = verdict(CLUSTER, reported)
    out = io.StringIO()
    reporter = Plain(out)
    for line in found.lines():
        reporter(Event(EventKind.CHECK, line.name, line.status, line.message))
    reporter.result({}, "\n".join(str(each) for each in found.results))
    assert "PWNED" in out.getvalue()
    assert commands(out.getvalue()) == []


def test_json_has_escapes_of_its_own() -> None:
    out = io.StringIO()
    reporter = JsonLines(out)
    for event in EVENTS:
        reporter(event)
    reporter.result({"x": ALL, "y": [ALL], ALL: 1}, "")
    reporter.error(InputError(ALL))
    assert commands(out.getvalue()) == []
    assert len(out.getvalue().splitlines()) == len(EVENTS) + 2


def test_what_a_program_on_a_host_has_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say(ALL)
    say(ALL, err=True, newline=False)
    shown = capsys.readouterr()
    assert "PWNED" in shown.out
    assert "PWNED" in shown.err
    assert commands(shown.out + shown.err) == []


def test_debug_lines_and_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    # pytest sends what is logged to another process, and can't send this one.
    text = ALL.replace("\ud800", "")

    def fail() -> None:
        with debugging(True):
            logging.getLogger("gpucluster.process").debug("run: %s", text)
            raise ValueError(text)

    with pytest.raises(ValueError, match="PWNED"):
        fail()
    shown = capsys.readouterr().err
    assert shown.count("PWNED") >= 2
    assert commands(shown) == []


@pytest.mark.parametrize("words", [[ALL], ["status", ALL], ["--output", ALL, "status"], ["ssh", "--file", ALL]])
def test_a_word_of_the_command_line(words: list[str]) -> None:
    """A word may come from a script, a page or a file's name. On a real terminal."""
    words = [word.encode("utf-8", "replace").decode().replace("\0", "") for word in words]
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "gpucluster", *words], stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S, check=False, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 1 << 16):
            shown += part
    except OSError:  # no program has the other end any more
        pass
    os.close(master)
    assert done.returncode != 0
    # A terminal makes two signs of each end of a line.
    assert commands(shown.decode().replace("\r\n", "\n")) == []


def _calls(file: Path) -> Iterator[tuple[int, str, ast.Call]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func), node


def test_one_module_prints() -> None:
    """What else writes on a terminal asks a question, in words of ours."""
    folder = Path(gpucluster.cli.__file__).parent
    found = []
    for file in sorted(folder.glob("*.py")):
        for line, name, call in _calls(file):
            place = f"{file.name}:{line}: {name}"
            if name in ("print", "sys.stdout.write", "sys.stderr.write") and file.name not in ("output.py", "debug.py"):
                found.append(place)
            if name in ("click.echo", "click.secho", "error.show") and file.name != "base.py":
                found.append(place)
            # One function asks for a yes, and escapes what it shows.
            if name == "click.confirm" and file.name != "output.py":
                found.append(place)
            if name in ("click.confirm", "click.prompt") and not isinstance(call.args[0], ast.Constant | ast.JoinedStr):
                found.append(place)
    assert found == [f"clusters.py:{line}: click.confirm" for line in _confirmations(folder)]


def _confirmations(folder: Path) -> list[int]:
    """The one question whose text is made before: it has names of nodes, which are escaped."""
    text = (folder / "clusters.py").read_text()
    assert "{printable(', '.join(nodes))}" in text
    return [number for number, line in enumerate(text.splitlines(), 1) if "click.confirm(text" in line]
