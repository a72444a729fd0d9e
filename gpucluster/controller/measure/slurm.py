"""What Slurm on this host reports of jobs and nodes, and cancelling jobs by their name."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from gpucluster.controller.measure.launch import PREFIX
from gpucluster.controller.rules.slurm_nodes import SINFO_FREE, SINFO_IN_USE
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

_SECONDS = 60.0
_POLL = 0.5
_SETTLE_SECONDS = 60.0
# A job has ended, or will begin, and none runs: the node is idle or busy soon.
_PASSING = (SINFO_FREE & SINFO_IN_USE) - {"mixed"}
_COLUMNS = 4


class JobRow(NamedTuple):
    """A job: its number, its state as squeue prints it, and why it waits."""

    id: str
    state: str
    reason: str


def jobs(prefix: str = PREFIX) -> dict[str, JobRow]:
    """Our jobs that have not ended, by their names.

    Raises:
        Failed: Slurm does not answer.
    """
    rows = (line.split("|", _COLUMNS - 1) for line in _ask("squeue", "--noheader", "--all", "--format=%j|%A|%T|%r"))
    return {row[0]: JobRow(*row[1:]) for row in rows if len(row) == _COLUMNS and row[0].startswith(prefix)}


def state(name: str) -> str:
    """The state of a job that may have ended, by its name; empty where Slurm does not know it, or does not answer."""
    with contextlib.suppress(Failed):
        rows = _ask("squeue", "--noheader", "--all", "--states=all", f"--name={name}", "--format=%T")
        return rows[0].strip() if rows else ""
    return ""


def nodes() -> list[str]:
    """The nodes: lines `name|state|reason`. One that cleans up after a job, as after those of `verify` itself, or is
    planned for one, is idle or busy soon: it is waited for, up to a minute.

    Raises:
        Failed: Slurm does not answer.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        found = _ask("sinfo", "--noheader", "--all", "--Node", "--format=%N|%T|%E")
        if time.monotonic() > deadline or not any(_state(line) in _PASSING for line in found):
            return found
        time.sleep(_POLL)


def _state(line: str) -> str:
    return line.partition("|")[2].partition("|")[0]


def cancel(ids: list[str]) -> None:
    """Cancel jobs by their numbers.

    Raises:
        Failed: Slurm does not answer.
    """
    if ids:
        _ask("scancel", "--quiet", *ids)


def cancel_all(prefix: str, seconds: float) -> list[str]:
    """Cancel all jobs whose name begins like that, and wait until they are gone. Returns their numbers.

    Raises:
        Failed: Slurm does not answer, or they do not end in time.
    """
    numbers: dict[str, None] = {}
    deadline = time.monotonic() + seconds
    while True:
        left = jobs(prefix)
        if not left:
            return list(numbers)
        if time.monotonic() > deadline:
            names = ", ".join(row.id for row in left.values())
            raise Failed(f"jobs of an earlier measurement do not end: {names}", "See: scontrol show job")
        ids = [row.id for row in left.values()]
        new = [number for number in ids if number not in numbers]
        numbers.update(dict.fromkeys(new))
        cancel(new)
        time.sleep(_POLL)


def _ask(*argv: str) -> list[str]:
    result = programs.call(argv, seconds=_SECONDS)
    if result.returncode != 0 and argv[0] != "scancel":  # which also fails for a job that has just ended
        last = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[-1]
        raise Failed(f"Slurm gives no answer: {last}", "See: systemctl status slurmctld")
    return result.stdout.splitlines()
