"""An all-reduce of MPI that needs no GPU: whether the ranks of a job find each other, sum rightly, and how fast."""

from __future__ import annotations

from gpucluster.jobs.model import (
    Expectation,
    Figure,
    Job,
    JobResult,
    Kind,
    Need,
    Option,
    Payload,
    Ranks,
    Requirement,
    Template,
)
from gpucluster.jobs.outputs import finding, last_run, number, objects
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.text import count

_BUSBW = "busbw"
_UNIT = "GB/s"
#: A C compiler counts the elements of a message in an int.
_MOST_BYTES = 8 * (2**31 - 1)


def _requirements(job: Job) -> tuple[Requirement, ...]:
    how = f"Install it on the nodes (Debian: libopenmpi-dev and gcc), or {job.launcher.scheduler.program_of()}"
    return (Requirement(Need.PROGRAM, "mpicc", how),)


def _expectation(job: Job) -> Expectation:
    exact = Figure("wrong", "at most", 0, "sums", "every sum is compared", "arithmetic")
    if not job.number("expect"):
        return (exact,)
    return (exact, Figure(_BUSBW, "at least", job.number("expect"), _UNIT, "option expect", "you"))


def _judge(text: str, job: Job) -> JobResult:
    documents = list(objects(last_run(text)))
    rows = [row for row in documents if number(row, "bytes") is not None and number(row, _BUSBW) is not None]
    ends = [end for end in documents if number(end, "ranks") is not None]
    keys = ("bytes", "seconds", "algbw", _BUSBW)
    steps = tuple({key: number(row, key) or 0.0 for key in keys} for row in rows)
    # Small messages measure latency.
    values = {_BUSBW: max(step[_BUSBW] for step in steps)} if steps else {}
    together = _together(job, [int(number(end, "ranks") or 0) for end in ends], ends)
    findings = [together, _right(job, rows, ends), *_fast(job, values)]
    return JobResult(tuple(findings), values, {_BUSBW: _UNIT, "seconds": "s"}, steps)


def _together(job: Job, ranks: list[int], ends: list[dict[str, object]]) -> Finding:
    """Whether all ranks found each other, and are on as many nodes as there should be."""
    if len(ends) > 1:
        message = f"{len(ends)} results were printed: the ranks did not find each other. Try --set mpi=pmi2"
        return finding(job, "ranks", Status.FAIL, message)
    if not ends:
        return finding(job, "ranks", Status.UNKNOWN, "the output is cut off: there is no last line with the ranks")
    if ranks[0] != job.ranks:
        message = f"{count(ranks[0], 'rank')} took part, and not {job.ranks}"
        return finding(job, "ranks", Status.FAIL, message)
    hosts = int(number(ends[0], "hosts") or 0)
    if hosts != job.nodes:
        return finding(job, "ranks", Status.FAIL, f"the ranks were on {count(hosts, 'node')}, and not on {job.nodes}")
    return finding(job, "ranks", Status.PASS, f"{count(ranks[0], 'rank')} on {count(hosts, 'node')} found each other")


def _right(job: Job, rows: list[dict[str, object]], ends: list[dict[str, object]]) -> Finding:
    wrong = [number(row, "wrong") for row in [*rows, *ends] if "wrong" in row]
    if any(wrong):
        message = (
            f"{max(int(each or 0) for each in wrong)} sums were wrong: a fault of memory, a processor or the network"
        )
        return finding(job, "sums", Status.FAIL, message)
    if not rows or not any("wrong" in end for end in ends):
        return finding(job, "sums", Status.UNKNOWN, "nothing was measured to its end")
    return finding(job, "sums", Status.PASS, f"all sums of {count(len(rows), 'size')} are right")


def _fast(job: Job, values: dict[str, float]) -> list[Finding]:
    expected = job.number("expect")
    if not expected or not values:
        return []
    status = Status.PASS if values[_BUSBW] >= expected else Status.FAIL
    word = "reaches" if status is Status.PASS else "is below"
    return [finding(job, _BUSBW, status, f"busbw {values[_BUSBW]:.3g} GB/s {word} {expected:g}, what was expected")]


TEMPLATE = Template(
    name="mpi_allreduce",
    title="An all-reduce of MPI, which needs no GPU",
    about=(
        "A small program in C, built on the nodes with mpicc. It sums messages of all ranks, compares every sum, and "
        "measures how long it takes. It fails if the ranks did not find each other or a sum is wrong. MPI chooses the "
        "network; no figure is published, so the speed is judged only with --set expect=GB/s."
    ),
    ranks=Ranks.MPI,
    launchers=("srun", "mpirun", "pyxis", "sge", "pbs", "lsf", "kubernetes-job", "jobset", "mpijob"),
    options=(
        Option("ranks_per_node", "ranks on each node", Kind.INTEGER, 1, minimum=1),
        Option("smallest", "bytes of the smallest message", Kind.INTEGER, 8, minimum=8),
        Option("largest", "bytes of the largest message", Kind.INTEGER, 64 << 20, minimum=8, maximum=_MOST_BYTES),
        Option("iterations", "how often each size is measured", Kind.INTEGER, 20, minimum=1),
        Option("expect", "GB/s of bus bandwidth to reach; 0: nothing is expected", Kind.NUMBER, 0.0, minimum=0),
    ),
    payload=(Payload("mpi_allreduce.c", executable=False),),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
    per_node=lambda job: int(job.number("ranks_per_node")),
    needs_gpus=False,
)
