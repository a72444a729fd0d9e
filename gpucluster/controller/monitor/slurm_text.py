"""What squeue, scontrol and sdiag print, as rows (Slurm 22.05 to 26.05). Pure.

The name of a job is any text: with quotes, line breaks, bytes that are not UTF-8, and what looks like another row. So
the fields of squeue are separated by a word that is random in each call: no user can put it into a name that was
given before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpucluster.controller.rules import slurm_nodes
from gpucluster.controller.rules.slurm_nodes import NodeLine

# job id, array's first id, tasks of the array, partitions, state, user, account; and the name, which comes last.
_JOB_FIELDS = ("%A", "%F", "%K", "%P", "%T", "%u", "%a", "%j")
_CPUS = re.compile(r" CPUAlloc=(\d+) .*?CPUTot=(\d+)")
_GRES = re.compile(r" Gres=(\S+)")
_GRES_USED = re.compile(r" GresUsed=(\S+)")
# gpu:8, gpu:a100:8(S:0-1), gpu:(null):2(IDX:0-1)
_GPUS = re.compile(r"(?:^|,)gpu(?::(?:\(null\)|[^:,()]+))?:(\d+)(?=[,(]|$)")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_NUMBER = re.compile(r"^\s*([A-Za-z][^:\n]*?):\s+(-?\d+)\s*$")


@dataclass(frozen=True)
class NodeRow:
    """One node: what it is, how many of its CPUs and GPUs jobs have, and how many it has."""

    node: NodeLine
    cpus: tuple[int, int]
    gpus: tuple[int, int]


def nodes(text: str) -> Iterator[NodeRow]:
    """The rows of `scontrol --oneliner --details show nodes`.

    Raises:
        ValueError: a row can't be read; its text.
    """
    for line in slurm_nodes.lines(text):
        node = slurm_nodes.parse_line(line)
        # What a user can write (Reason, Comment, Extra) comes after all of these.
        cpus = _CPUS.search(line)
        yield NodeRow(
            node, (int(cpus.group(1)), int(cpus.group(2))) if cpus else (0, 0),
            (_gpus(_GRES_USED.search(line)), _gpus(_GRES.search(line))),
        )  # fmt: skip


def _gpus(match: re.Match[str] | None) -> int:
    return sum(map(int, _GPUS.findall(match.group(1)))) if match else 0


@dataclass(frozen=True)
class QueueRow:
    """One row of squeue: a job, or those tasks of an array that wait.

    Args:
        array: whether it is a task of an array, or some of them. tasks: how many.
        partitions: as Slurm writes it: those in which it may start, with commas, while it waits.
        state: as Slurm writes it, RUNNING.
    """

    job_id: str
    array: bool
    tasks: int
    partitions: str
    state: str
    user: str
    account: str
    name: str


def job_format(word: str) -> str:
    """The format of squeue, with a word that can't be guessed."""
    return word.join(_JOB_FIELDS) + word * 2


def jobs(text: str, word: str) -> Iterator[QueueRow]:
    """The rows of squeue with that format.

    Raises:
        ValueError: a row can't be read; its text.
    """
    *rows, rest = text.split(f"{word * 2}\n")
    if rest.strip():
        raise ValueError(rest[:200])
    for row in rows:
        fields = row.split(word)
        if len(fields) != len(_JOB_FIELDS):
            raise ValueError(row[:200])
        job_id, _array, tasks, partitions, state, user, account, name = fields
        array = tasks not in ("", "N/A")
        # Without accounting a job has no account.
        account = "" if account == "(null)" else account
        yield QueueRow(job_id, array, tasks_of(tasks) if array else 1, partitions, state, user, account, name)


def tasks_of(text: str) -> int:
    """How many tasks an expression has: `7`, `0-99`, `1,3,10-20:2%4`; at least one, also where it can't be read."""
    count = 0
    for part in text.partition("%")[0].split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            continue
        first, last, step = int(match.group(1)), int(match.group(2) or match.group(1)), int(match.group(3) or 1)
        count += max(0, last - first) // max(1, step) + 1
    return max(1, count)


#: Of a block of sdiag: its title, the row, and what it is here.
_SCHEDULER = {
    "": {
        "Server thread count": "server_threads",
        "Agent queue size": "agent_queue_size",
        "DBD Agent queue size": "database_queue_size",
        "Jobs submitted": "jobs_submitted_total",
        "Jobs started": "jobs_started_total",
        "Jobs completed": "jobs_completed_total",
        "Jobs canceled": "jobs_canceled_total",
        "Jobs failed": "jobs_failed_total",
    },
    "Main schedule": {
        "Last cycle": "last_cycle_seconds",
        "Mean cycle": "mean_cycle_seconds",
        "Last queue length": "queue_length",
    },
    "Backfilling stats": {
        "Total backfilled jobs (since last slurm start)": "backfilled_jobs_total",
        "Last cycle": "backfill_last_cycle_seconds",
        "Mean cycle": "backfill_mean_cycle_seconds",
        "Last depth cycle": "backfill_last_depth",
    },
}
_END = "Remote Procedure Call"


def scheduler(text: str) -> dict[str, float]:
    """What sdiag prints, by the end of the name of the metric. Rows that a version lacks are missing.

    Raises:
        ValueError: it is not the output of sdiag.
    """
    values: dict[str, float] = {}
    block = _SCHEDULER[""]
    for line in text.split("\n"):
        if line.startswith(_END):
            break
        for title, rows in _SCHEDULER.items():
            if title and line.startswith(title):
                block = rows
        row = _NUMBER.match(line)
        name = block.get(row.group(1)) if row else None
        if row is not None and name is not None:
            # Cycles are in microseconds.
            value = int(row.group(2))
            values.setdefault(name, value / 1e6 if name.endswith("_seconds") else value)
    if "server_threads" not in values:
        raise ValueError(text[:200])
    return values
