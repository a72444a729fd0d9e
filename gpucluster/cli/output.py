"""Events and results as text for users, or as JSON for programs. The only module that prints.

Most of what it prints comes from elsewhere: Slurm's reasons, answers of OCI and of hosts, output of Terraform and
Ansible. Whatever it is, no control character of it reaches a terminal: `_Lines`, `say`, `table` and `failure_text`
escape them, and JSON does.

Three reporters: `LiveTerminal` (a live status line under what has happened), `Plain` (lines, for logs and pipes) and
`JsonLines` (one event a line, the result last).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from gpucluster.controller.columns import columns, padded
from gpucluster.errors import GpuClusterError, InputError, PreflightFinding
from gpucluster.events import Event, EventKind, PhaseStatus
from gpucluster.terraform.addresses import is_internal
from gpucluster.text import printable, terminal

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

# How each status is shown; a status that is not listed here is shown as it is.
_SIGNS = {
    "created": "+", "updated": "~", "deleted": "-", "replaced": "±", "failed": "x", "unreachable": "x",
    "pass": "✓", "fail": "x", "unknown": "?", "warn": "!", "skip": "·", "cached": "=", "warning": "!", "error": "x",
}  # fmt: skip
_COLOURS = {
    "created": "green", "updated": "yellow", "replaced": "yellow", "deleted": "red", "failed": "bold red",
    "unreachable": "bold red", "pass": "green", "fail": "bold red", "unknown": "bold yellow", "warn": "yellow",
    "warning": "yellow",     "error": "bold red",
}  # fmt: skip
_INSTANT = 0.05  # seconds; shown with one digit, less than this would be 0.0 s
# Columns by which a wrapped line is indented more than its beginning: what follows a sign stands under the text.
_HANGING = 4
# Narrower terminals wrap by themselves.
_NARROWEST = 40
# A line of a result that is to be copied: whole, so that it is one command.
_COMMAND = re.compile(r"\s+(?:\S*/)?(?:gpucluster|ssh|scp|srun|sbatch|scontrol|sacctmgr|kubectl|curl|cd)\s")
# Terminals that can't move the cursor.
_DUMB = ("dumb", "unknown")
_ONGOING = frozenset({"creating", "updating", "deleting", "replacing", "working", "reading"})


def seconds(value: float) -> str:
    """A duration, readable: `0.4 s`, `12 s`, `3 min 05 s`."""
    if value < 10:  # noqa: PLR2004
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def failure_text(error: GpuClusterError) -> str:
    """An error as text for users."""
    return terminal(f"gpucluster: {error}")


def wrapped(text: str, width: int) -> str:
    """The text with lines of at most `width` columns, broken at spaces; what follows is indented like its line.

    A word that is longer than a line stays whole: a path or a command can still be copied.
    """
    lines = []
    for line in text.split("\n"):
        lines += _broken(line, width) if columns(line) > width else [line]
    return "\n".join(lines)


def _broken(line: str, width: int) -> list[str]:
    """The parts of one line. They are counted in columns: a Japanese name takes two for a character."""
    indent = len(line) - len(line.lstrip(" "))
    parts = [line[:indent]]
    for gap, word in re.findall(r"( *)([^ ]+)", line[indent:]):
        if parts[-1].strip() and columns(parts[-1] + gap + word) > width:
            parts.append(" " * (indent + _HANGING) + word)
        else:
            parts[-1] += gap + word
    return parts


def _broken_result(text: str, width: int) -> str:
    """The text of a result with lines of at most `width` columns, and its commands whole."""
    return "\n".join(line if _COMMAND.match(line) else wrapped(line, width) for line in text.split("\n"))


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print a text that is neither an event nor a result: a question, or what a program on a host has printed.

    Args:
        err: on standard error.
        newline: end the line.
    """
    print(terminal(text), file=sys.stderr if err else sys.stdout, end="\n" if newline else "", flush=True)


def agree(question: str, refusal: str) -> None:
    """Ask a user, on standard error, whether something may be done.

    Args:
        question: without its question mark; names in it may come from elsewhere.
        refusal: what is reported if it may not.

    Raises:
        InputError: it may not.
    """
    if not click.confirm(f"{terminal(question)}", default=False, err=True):
        raise InputError(refusal, hint="Pass --yes to skip the question")


class ResultReporter(Protocol):
    """Shows events, and how a command ended."""

    def __call__(self, event: Event) -> None:
        """Show one event."""

    def result(self, data: Mapping[str, Any], text: str, *, verbatim: bool = False) -> None:
        """Show how a command ended: `data` for programs, `text` for users.

        Args:
            verbatim: the text is the content of a file, a value or lines of a log: no line may be broken.
        """

    def error(self, error: GpuClusterError) -> None:
        """Show why a command failed."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class JsonLines:
    """One JSON object a line on standard output: the events, then `{"kind": "result", ...}`.

    The `data` of every command that fails has the same members: see `GpuClusterError.to_dict`.
    """

    def __init__(self, out: IO[str] | None = None, *, command: str = "") -> None:
        self._out = out or sys.stdout
        self._command = command

    def __call__(self, event: Event) -> None:
        """Write one event."""
        print(json.dumps(event.to_dict(), default=str), file=self._out, flush=True)

    def result(self, data: Mapping[str, Any], text: str, *, verbatim: bool = False) -> None:
        """Write the final object."""
        del text, verbatim
        status = str(data.get("status", "success"))
        self(Event(EventKind.RESULT, str(data.get("command", "")), status, data=data))

    def error(self, error: GpuClusterError) -> None:
        """Write the error as the final object."""
        data = {"command": self._command, **error.to_dict()}
        self(Event(EventKind.RESULT, self._command, "failed", str(error), data=data))

    def close(self) -> None:
        """There is nothing to release."""


class _Lines:
    """What the two reporters with text share: which events become a line, and its text.

    Args:
        verbose: show every task with its host, each resource when work on it begins, and the checks that are skipped.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._last_task = ""

    def line(self, event: Event) -> str:
        """The line for an event, without colour; empty if the event needs none.

        A message of several lines is indented: none of them looks as if it were ours.
        """
        return terminal(self._line(event)).replace("\n", "\n      ")

    def _line(self, event: Event) -> str:
        took = f"  {seconds(event.elapsed)}" if event.elapsed is not None else ""
        message = f"  {event.message}" if event.message else ""
        sign = _SIGNS.get(event.status, " ")
        if event.kind == EventKind.PHASE:
            return self._phase(event, took)
        if event.kind == EventKind.RESOURCE:
            internal = is_internal(event.name) and event.status != "failed"
            if ((event.status in _ONGOING and not event.message) or internal) and not self._verbose:
                return ""
            if event.elapsed is not None and event.elapsed < _INSTANT:
                took = ""
            return f"  {sign} {event.name} {event.status}{took}{message}"
        if event.kind == EventKind.TASK:
            return self._task(event, sign)
        if event.kind == EventKind.CHECK:
            # A host without GPUs skips dozens of checks.
            return "" if event.status == "skip" and not self._verbose else f"  {sign} {event.name}: {event.message}"
        return f"  {sign} {event.message}"

    @staticmethod
    def _phase(event: Event, took: str) -> str:
        if event.status == PhaseStatus.STARTED:
            return f"{event.name}"
        return f"{event.name} {event.status}{took}"

    def _task(self, event: Event, sign: str) -> str:
        if event.status in ("failed", "unreachable"):
            return f"  {sign} {event.data.get('host', '')}: {event.name}: {event.message}"
        if self._verbose:
            return f"    {event.data.get('host', '')}: {event.name}: {event.status}"
        if event.name == self._last_task:
            return ""
        self._last_task = event.name
        return f"    {event.name}"


class Plain(_Lines):
    """Lines without colour or movement; errors go to standard error.

    Args:
        clock: begin the line of an event with the time, as a log needs it.
    """

    def __init__(self, out: IO[str] | None = None, *, verbose: bool = False, clock: bool = False) -> None:
        super().__init__(verbose=verbose)
        self._out = out or sys.stdout
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        line = self.line(event)
        if line:
            at = time.strftime("%H:%M:%S ", time.localtime(event.time)) if self._clock else ""
            print(f"{at}{line}", file=self._out, flush=True)

    def result(self, data: Mapping[str, Any], text: str, *, verbatim: bool = False) -> None:
        """Print the text. A pipe gets lines as they are."""
        del data, verbatim
        if text:
            print(terminal(text), file=self._out, flush=True)

    def error(self, error: GpuClusterError) -> None:
        """Print the error."""
        print(failure_text(error), file=sys.stderr, flush=True)

    def close(self) -> None:
        """There is nothing to release."""


class LiveTerminal(_Lines):
    """For a user at a terminal: lines for what has happened, and a live status line at the bottom."""

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._phase_name = ""
        self._last: float | None = None
        self._tasks: Mapping[str, Any] | None = None
        self._number = 0
        self._activity = ""
        self._since = time.monotonic()
        self._working: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        """Print the event's line, if it has one, and update the status line."""
        from rich.markup import escape

        if event.kind == EventKind.PHASE and event.status == PhaseStatus.STARTED:
            self._phase_name, self._since = event.name, time.monotonic()
            self._last, self._tasks, self._number = event.data.get("last"), event.data.get("tasks"), 0
            self._working.clear()
        elif event.kind == EventKind.TASK and event.status in ("ok", "changed") and not self._verbose:
            self._number = max(self._number, event.data.get("number", 0))
            self._show_activity(event.name)
            return
        else:
            line = self.line(event)
            if line:
                line = wrapped(line, max(self._console.width, _NARROWEST))
                colour = _COLOURS.get(event.status, "bold" if event.kind == EventKind.PHASE else "")
                self._console.print(f"[{colour}]{escape(line)}[/]" if colour else escape(line))
        self._track(event)
        self._show_activity(", ".join(list(self._working)[-2:]))

    def _track(self, event: Event) -> None:
        if event.kind != EventKind.RESOURCE:
            return
        if event.status in _ONGOING:
            self._working[event.name] = None
        else:
            self._working.pop(event.name, None)

    def _show_activity(self, activity: str) -> None:
        """Show the status line. It is drawn several times a second, so that its clock also moves between events."""
        self._activity = activity
        if self._status is None:
            self._status = self._console.status(_Live(self.status_line), spinner="dots", refresh_per_second=5)
            self._status.start()

    def status_line(self) -> str:
        """The phase, since when it runs, and what is being done, in the width of the terminal."""
        elapsed = time.monotonic() - self._since
        since = seconds(elapsed) + self._left(elapsed)
        width = max(self._console.width - len(self._phase_name) - len(since) - 8, 10)
        return printable(f"{self._phase_name}  {since}  {self._activity[:width]}")

    def _left(self, elapsed: float) -> str:
        """How far the phase is, from what it took in an earlier run; empty without one, and when it takes longer."""
        if self._number and self._tasks:
            number, took = self._tasks["number"], self._tasks["seconds"]
            if self._number > number:
                return ""
            share = 1 - self._number / number
            return f", {self._number} of {number}, about {seconds(took * share)} left"
        left = (self._last or 0) - elapsed
        return f", about {seconds(left)} left" if left > 0 else ""

    def result(self, data: Mapping[str, Any], text: str, *, verbatim: bool = False) -> None:
        """Remove the status line and print the text."""
        del data
        self.close()
        if text:
            shown = terminal(text)
            broken = shown if verbatim else _broken_result(shown, max(self._console.width, _NARROWEST))
            self._console.print(broken, markup=False)

    def error(self, error: GpuClusterError) -> None:
        """Remove the status line and print the error on standard error."""
        self.close()
        from rich.console import Console

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(wrapped(failure_text(error), max(console.width, _NARROWEST)), style="red", markup=False)

    def close(self) -> None:
        """Remove the status line and show the cursor again."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class _Live:
    """A text that is asked for each time it is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self._text(), style="dim", no_wrap=True, overflow="ellipsis")


def reporter_for(kind: str, *, verbose: bool = False, command: str = "") -> ResultReporter:
    """The reporter for `--output`: auto, text or json. `auto` is live on a terminal, and plain in a pipe and on a
    terminal that can't show a live line.

    Args:
        command: the name of the command, for the result in JSON.
    """
    if kind == "json":
        return JsonLines(command=command)
    if kind == "auto" and sys.stdout.isatty() and os.environ.get("TERM") not in _DUMB:
        return LiveTerminal(verbose=verbose)
    return Plain(verbose=verbose, clock=not sys.stdout.isatty())


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """A plain table, columns as wide as their widest cell. A cell is one line, whatever is in it."""
    cells = [[printable(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(columns(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def findings(listed: Sequence[PreflightFinding]) -> str:
    """A table of the findings of a preflight; under each reason is what to do."""
    rows = []
    for finding in listed:
        rows.append([finding.level, finding.check, finding.reason])
        if finding.action:
            rows.append(["", "", f"  {finding.action}"])
    return table(rows, ["LEVEL", "CHECK", "WHAT, AND WHAT TO DO"]) if rows else ""
