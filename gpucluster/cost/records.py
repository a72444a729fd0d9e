"""Reads what a controller has recorded: rows of instances, and the lines of sacct.

    TZ=UTC SLURM_TIME_FORMAT=%s sacct <ARGUMENTS of `gpucluster.controller.accounts.usage`>

Of a job that was requeued sacct has a line for each run (`--duplicates`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucluster.cost.model import Hardware, HostInterval, JobRun
from gpucluster.slurm.hostlists import HostlistError, expand

_COLUMNS = 7
_FOREVER = float("inf")
_UNITS = {"": 1 / 2**20, "K": 1 / 2**10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_MEMORY = re.compile(r"([0-9.]+)([KMGTP]?)")


def hosts(rows: Sequence[Mapping[str, Any]]) -> list[HostInterval]:
    """Instances from rows with `id`, `name`, `pool`, `machine`, `began`, `ended` and `unsure`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: a row is not well formed.
    """
    return [_host(row) for row in rows]


def runs(text: str) -> list[JobRun]:
    """The runs of jobs in the lines of sacct. A job that never began has none.

    Raises:
        ValueError: a line is not well formed.
    """
    return list(_runs(text))


def _host(row: Mapping[str, Any]) -> HostInterval:
    machine = dict(row["machine"] or {})
    hardware = Hardware(*(float(machine.pop(name, 0.0) or 0.0) for name in ("cpus", "memory_mib", "devices")))
    ended = row.get("ended")
    return HostInterval(
        str(row["id"]),
        str(row["name"]),
        str(row["pool"]),
        machine,
        hardware,
        float(row["began"]),
        _FOREVER if ended is None else float(ended),
        float(row.get("unsure") or 0.0),
    )


def _runs(text: str) -> Iterator[JobRun]:
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = line.split("|")
        if len(fields) != _COLUMNS:
            raise ValueError(f"not a line of sacct: {line[:100]!r}")
        number, user, account, begin, end, tres, nodes = fields
        if begin.isdigit() and int(begin) and not nodes.startswith("None"):
            try:
                names = tuple(expand(nodes))
            except HostlistError as error:
                raise ValueError(f"not a list of nodes: {nodes[:100]!r}") from error
            # "Unknown": it has not ended.
            until = float(end) if end.isdigit() and int(end) else _FOREVER
            yield JobRun(number, user, account, names, _hardware(tres), float(begin), until)


def _hardware(text: str) -> Hardware:
    """Of `billing=8,cpu=8,gres/gpu=2,mem=16G,node=1`. A GPU with a type is counted once."""
    tres = dict(pair.partition("=")[::2] for pair in text.split(",") if "=" in pair)
    memory = _MEMORY.fullmatch(tres.get("mem", "0"))
    mebibytes = float(memory[1]) * _UNITS[memory[2]] if memory else 0.0
    return Hardware(float(tres.get("cpu", 0)), mebibytes, float(tres.get("gres/gpu", 0)))
