"""`seff JOB`: how much of its processors and of its memory a job has used, by Slurm's accounting.

The output has the lines of the program of the same name in Slurm's contributions, which needs Perl and Slurm's library
for it, and which not every distribution packages.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucluster.node_agent import programs

FIELDS = (
    "JobID", "JobIDRaw", "Cluster", "User", "Group", "State", "ExitCode", "NNodes", "AllocCPUS", "ElapsedRaw",
    "TotalCPU", "TRESUsageInTot", "AllocTRES",
)  # fmt: skip
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_JOB = re.compile(r"\d+([_+]\d+)?")


class JobUsage(NamedTuple):
    """One job. Times in seconds, memory in bytes; None where Slurm has no number."""

    name: str
    cluster: str
    owner: str
    state: str
    exit_code: str
    nodes: int
    processors: int
    elapsed: int
    used: float
    memory: int | None
    allocated_memory: int | None


def parse(lines: Iterable[str]) -> list[JobUsage]:
    """The jobs in the output of sacct: a row for each job, followed by its steps."""
    rows = [dict(zip(FIELDS, line.split("|"))) for line in lines if line.count("|") == len(FIELDS) - 1]
    steps: dict[str, list[int]] = {}
    for row in rows:
        job, dot, _step = row["JobIDRaw"].partition(".")
        memory = _memory(row["TRESUsageInTot"])
        if dot and memory is not None:
            steps.setdefault(job, []).append(memory)
    return [_job(row, steps.get(row["JobIDRaw"], [])) for row in rows if "." not in row["JobIDRaw"]]


def _job(row: Mapping[str, str], steps: Sequence[int]) -> JobUsage:
    # The steps of a job may run one after the other: the largest of them counts.
    return JobUsage(
        name=row["JobID"],
        cluster=row["Cluster"],
        owner=f"{row['User']}/{row['Group']}",
        state=row["State"],
        exit_code=row["ExitCode"].partition(":")[0],
        nodes=_number(row["NNodes"]),
        processors=_number(row["AllocCPUS"]),
        elapsed=_number(row["ElapsedRaw"]),
        used=_seconds(row["TotalCPU"]),
        memory=max(steps, default=None),
        allocated_memory=_memory(row["AllocTRES"]),
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _seconds(text: str) -> float:
    """Of `[DAYS-[HOURS:]]MINUTES:SECONDS`."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":") if rest else ():
        seconds = seconds * 60 + float(part)
    return seconds + 86400 * _number(days)


def _memory(resources: str) -> int | None:
    """The bytes in `cpu=1,mem=80M,...`."""
    match = re.search(r"(?:^|,)mem=(\d+(?:\.\d+)?)([KMGTP]?)", resources)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def report(job: JobUsage) -> str:
    """What is printed about a job."""
    lines = [
        f"Job ID: {job.name}",
        f"Cluster: {job.cluster}",
        f"User/Group: {job.owner}",
        f"State: {job.state} (exit code {job.exit_code})",
        f"Nodes: {job.nodes}",
        f"Cores per node: {job.processors // max(job.nodes, 1)}",
    ]
    possible = job.processors * job.elapsed
    if not possible:
        return "\n".join([*lines, "The job has not run yet, or for less than a second."])
    lines += [
        f"CPU Utilized: {_clock(job.used)}",
        f"CPU Efficiency: {100 * job.used / possible:.2f}% of {_clock(possible)} core-walltime",
        f"Job Wall-clock time: {_clock(job.elapsed)}",
    ]
    if job.memory is None:
        lines.append("Memory Utilized: unknown, because Slurm has no sample of it")
    else:
        lines.append(f"Memory Utilized: {_size(job.memory)}")
        if job.allocated_memory:
            share = 100 * job.memory / job.allocated_memory
            lines.append(f"Memory Efficiency: {share:.2f}% of {_size(job.allocated_memory)}")
    if job.state.startswith("RUNNING"):
        lines.append("The job still runs: Slurm knows the processor time of ended steps only.")
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"


def _size(value: int) -> str:
    unit = next((name for name in "TGM" if value >= _UNITS[name]), "K")
    return f"{value / _UNITS[unit]:.2f} {unit}B"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(prog="seff", description="How much of its processors and memory a job has used.")
    parser.add_argument("job", metavar="JOB", help="the number of a job, or of a task of an array as 12_3")
    job = parser.parse_args(argv).job
    if not _JOB.fullmatch(job):
        parser.error(f"{job!r} is not the number of a job")
    result = programs.call(
        ["sacct", "--noheader", "--parsable2", "--noconvert", f"--jobs={job}", f"--format={','.join(FIELDS)}"]
    )
    jobs = parse(result.stdout.splitlines())
    if result.returncode != 0 or not jobs:
        reason = " ".join(result.stderr.split()) or f"Slurm's accounting has no job {job}; see squeue"
        sys.stderr.write(f"seff: {reason}\n")
        return 1
    sys.stdout.write("\n\n".join(map(report, jobs)) + "\n")
    return 0
