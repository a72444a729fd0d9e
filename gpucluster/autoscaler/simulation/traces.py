r"""Past jobs, from `sacct` or from a file in the Standard Workload Format.

The command whose output is read (times in a zone without summer time, because the output names no zone)::

    TZ=UTC sacct --allusers --allocations --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 \
        --format JobID,Submit,ElapsedRaw,TimelimitRaw,NNodes,Partition,User,State

The columns are found by the names in the first line; further columns are ignored. The other format is that of the
Parallel Workloads Archive (version 2.2): 18 numbers a line, comments after `;`, -1 for unknown values. A file may be
compressed with gzip.

Jobs that never ran (cancelled while they waited, or still waiting) are left out and counted.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from gpucluster.errors import InputError, InputFinding

FORMATS = ("sacct", "swf")
MAX_FINDINGS = 20

_REQUIRED = ("JobID", "Submit", "ElapsedRaw", "NNodes")
_SWF_FIELDS = 18
_NOT_RUN = re.compile(r"PENDING|REQUEUED|RESV_DEL_HOLD")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One past job: seconds of the epoch (or since the begin of the trace), whole nodes.

    Args:
        run_seconds: how long it ran. `limit`: its time limit; how long it ran if the limit is not known.
    """

    submitted_at: float
    node_count: int
    run_seconds: float
    limit: float
    partition: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their submission, and how many lines have no job that ran."""

    jobs: tuple[TraceJob, ...]
    left_out: int = 0


class _BadLine(Exception):
    """Why a line is wrong."""


def read_traces(files: Sequence[Path], kind: str, *, processors_per_node: int = 1) -> Trace:
    """Read one or several files as one trace.

    Args:
        kind: "sacct" or "swf".
        processors_per_node: of a file in the Standard Workload Format, which counts processors.

    Raises:
        InputError: a file can't be read, a line is wrong (with file and line), or no job ran.
    """
    findings: list[InputFinding] = []
    jobs: list[TraceJob] = []
    left_out = 0
    for file in files:
        with _opened(file) as stream:
            lines = enumerate(stream, 1)
            read = _sacct_reader(lines, str(file)) if kind == "sacct" else _swf_reader(processors_per_node)
            for number, line in lines:
                try:
                    job = read(line)
                except _BadLine as bad:
                    findings.append(InputFinding(str(file), number, 1, "", str(bad)))
                    if len(findings) == MAX_FINDINGS:
                        break
                    continue
                if job is None:
                    left_out += bool(line.strip()) and not line.lstrip().startswith(";")
                else:
                    jobs.append(job)
    if findings:
        more = "; there may be more" if len(findings) == MAX_FINDINGS else ""
        raise InputError(f"the trace has bad lines{more}", where=findings[0].file, hint=_HINT, findings=findings)
    if not jobs:
        raise InputError("no job of the trace ran", where=", ".join(map(str, files)), hint=_HINT)
    return Trace(tuple(sorted(jobs, key=lambda job: job.submitted_at)), left_out)


def from_zero(trace: Trace) -> Trace:
    """The same jobs; the first is submitted at 0."""
    first = trace.jobs[0].submitted_at
    return replace(trace, jobs=tuple(replace(job, submitted_at=job.submitted_at - first) for job in trace.jobs))


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            with io.TextIOWrapper(gzip.GzipFile(fileobj=stream) if packed else stream, encoding="utf-8") as text:
                yield text
    except UnicodeDecodeError as error:
        raise InputError("the trace is not text", where=str(file), hint=_HINT) from error
    except (OSError, EOFError, zlib.error) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise InputError(f"can't read the trace: {words}", where=str(file), hint=_HINT) from error


# --- sacct -----


def _sacct_reader(lines: Iterable[tuple[int, str]], file: str) -> Callable[[str], TraceJob | None]:
    header = next(iter(lines), (1, ""))[1].rstrip("\n").split("|")
    lacking = [name for name in _REQUIRED if name not in header]
    if lacking:
        finding = InputFinding(file, 1, 1, "", f"the first line names no column {', '.join(lacking)}")
        raise InputError("this is not the output of sacct", where=file, hint=_HINT, findings=[finding])
    place = {name: index for index, name in enumerate(header)}

    def read(line: str) -> TraceJob | None:
        cells = line.rstrip("\n").split("|")
        if cells == [""]:
            return None
        if len(cells) != len(header):
            raise _BadLine(f"has {len(cells)} columns, the first line has {len(header)}")

        def cell(name: str) -> str:
            return cells[place[name]] if name in place else ""

        return _sacct_job(cell)

    return read


def _sacct_job(cell: Callable[[str], str]) -> TraceJob | None:
    if "." in cell("JobID") or _NOT_RUN.match(cell("State")):
        return None  # a step, or a job that has not run yet
    nodes = _number(cell("NNodes"), "NNodes")
    ran = _number(cell("ElapsedRaw"), "ElapsedRaw")
    if not nodes or not ran:
        return None
    limit = cell("TimelimitRaw")
    return TraceJob(
        submitted_at=_moment(cell("Submit")),
        node_count=nodes,
        run_seconds=float(ran),
        limit=max(float(limit) * 60 if limit.isascii() and limit.isdigit() else 0.0, float(ran)),
        partition=cell("Partition").split(",")[0],
        user=cell("User"),
    )


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise _BadLine(f"{name} is {text[:40]!r}, not a number")
    return int(text)


def _moment(text: str) -> float:
    if re.fullmatch(r"[0-9]{9,11}", text):
        return float(text)  # SLURM_TIME_FORMAT=%s
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise _BadLine(f"Submit is {text[:40]!r}, not a time such as 2026-01-31T12:00:00") from error


# --- the Standard Workload Format -----


def _swf_reader(processors_per_node: int) -> Callable[[str], TraceJob | None]:
    def read(line: str) -> TraceJob | None:
        words = line.partition(";")[0].split()
        if not words:
            return None
        if len(words) != _SWF_FIELDS:
            raise _BadLine(f"has {len(words)} fields, not {_SWF_FIELDS}")
        return _swf_job([_decimal(word) for word in words], processors_per_node)

    return read


def _swf_job(fields: list[float], processors_per_node: int) -> TraceJob | None:
    submitted, ran, allocated, requested, limit = (fields[index] for index in (1, 3, 4, 7, 8))
    processors = allocated if allocated > 0 else requested
    if submitted < 0:
        raise _BadLine("has no submit time")
    if ran <= 0 or processors <= 0:
        return None
    return TraceJob(
        submitted_at=submitted,
        node_count=max(-(-int(processors) // processors_per_node), 1),
        run_seconds=ran,
        limit=max(limit, ran),
        partition="",
        user=f"user{int(fields[11])}" if fields[11] >= 0 else "",
    )


def _decimal(word: str) -> float:
    if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{0,9})?", word):
        raise _BadLine(f"{word[:40]!r} is not a number")
    return float(word)


_HINT = "docs/how-to/simulate.md shows how to write a trace"
