"""Horovod's benchmark of ResNet-50, as seeds 000 and 004 ran it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

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
from gpucluster.jobs.outputs import finding, last_run
from gpucluster.node_agent.checks.model import Finding, Status

_PER_GPU, _TOTAL, _EFFICIENCY = "img_per_s_per_gpu", "img_per_s", "efficiency"
_UNITS = {_PER_GPU: "img/s", _TOTAL: "img/s", _EFFICIENCY: ""}
#: Several nodes must reach this share of what one reaches, for each GPU. Seed 000: 573.2 of 600.0 are 95.5 %.
_ENOUGH = 0.9
#: With a larger spread the mean is not reliable. Seeds 000 and 004: 0.6 %, 0.3 % and 2.1 %.
_STEADY = 0.1
#: Shape, GPUs, img/s of each GPU and of all, condition, source.
_PUBLISHED = (
    ("BM.GPU4.8", 8, 600.0, 4800.1, "1 node with 8 A100, batches of 32", "seed 000"),
    ("BM.GPU4.8", 16, 573.2, 9170.8, "2 nodes with 8 A100 each, batches of 32", "seed 000"),
    ("", 8, 174.9, 1399.1, "4 nodes with 2 P100 each, batches of 32", "seed 004"),
)
# horovodrun and mpirun --tag-output put the rank in front.
_TAG = re.compile(r"^\[\d+,\d+\]<\w+>:\s?")
_RANKS = re.compile(r"^Number of [CG]PUs: (\d+)\s*$")
_ITERATION = re.compile(r"^Iter #(\d+): ([\d.]+) img/sec per [CG]PU")
_MEAN = re.compile(r"^Img/sec per [CG]PU: ([\d.]+) \+-([\d.]+)")
_SUM = re.compile(r"^Total img/sec on (\d+) [CG]PU\(s\): ([\d.]+)")


@dataclass
class _Run:
    """What one start of the program has printed."""

    ranks: int
    iterations: list[float] = field(default_factory=list)
    mean: float = 0.0
    spread: float = 0.0
    total: float = 0.0


def _runs(text: str) -> list[_Run]:
    runs: list[_Run] = []
    for line in last_run(text).splitlines():
        words = _TAG.sub("", line)
        ranks, iteration = _RANKS.match(words), _ITERATION.match(words)
        mean, total = _MEAN.match(words), _SUM.match(words)
        if ranks:
            runs.append(_Run(int(ranks[1])))
        elif not runs:
            continue
        elif iteration:
            runs[-1].iterations.append(_number(iteration[2]))
        elif mean:
            runs[-1].mean, runs[-1].spread = _number(mean[1]), _number(mean[2])
        elif total and int(total[1]) == runs[-1].ranks:
            runs[-1].total = _number(total[2])
    return runs


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _judge(text: str, job: Job) -> JobResult:
    runs = _runs(text)
    # The last run with all ranks; a run on one node for comparison has gone before it.
    whole = next((run for run in reversed(runs) if run.ranks == job.ranks and run.total), None)
    if whole is None:
        return JobResult((_incomplete(runs, job),))
    alone = next((run for run in runs if run.ranks == job.per_node and run.total), None)
    values = {_PER_GPU: whole.mean, _TOTAL: whole.total}
    reference = alone.total / job.per_node if alone else job.number("one_node") / job.per_node
    findings = [_steadiness(whole, job)]
    if job.nodes > 1 and reference:
        values[_EFFICIENCY] = round(whole.mean / reference, 4)
        findings.insert(0, _scaling(values[_EFFICIENCY], reference, whole, job))
    else:
        findings.insert(0, _speed(whole, job))
    steps = tuple({"step": float(index), _PER_GPU: speed} for index, speed in enumerate(whole.iterations))
    return JobResult(tuple(findings), values, _UNITS, steps)


def _incomplete(runs: list[_Run], job: Job) -> Finding:
    check = "training"
    alone = [run for run in runs if run.ranks == 1]
    if job.ranks > 1 and len(alone) > 1:
        words = (
            f"{len(alone)} processes trained alone instead of {job.ranks} together: they did not find each other. "
            "Try another MPI type (--set mpi=pmi2), and see that Horovod was built with MPI: horovodrun --check-build"
        )
        return finding(job, check, Status.FAIL, words)
    others = sorted({run.ranks for run in runs if run.total and run.ranks not in (job.ranks, job.per_node)})
    if others:
        return finding(job, check, Status.FAIL, f"{others[0]} processes trained together, and not {job.ranks}")
    if runs:
        last = runs[-1]
        words = (
            f"the output ends after {len(last.iterations)} measurements with {last.ranks} processes: there is no total"
        )
        return finding(job, check, Status.UNKNOWN, words)
    return finding(job, check, Status.UNKNOWN, "the output has no results: the program ended before it trained")


def _scaling(efficiency: float, reference: float, run: _Run, job: Job) -> Finding:
    words = (
        f"{run.mean:.1f} img/s for each GPU on {job.nodes} nodes are {efficiency:.1%} of one node's {reference:.1f}"
        f"; the limit is {_ENOUGH:.0%}"
    )
    return finding(job, "scaling", Status.PASS if efficiency >= _ENOUGH else Status.FAIL, words)


def _speed(run: _Run, job: Job) -> Finding:
    """The speed alone: compared with what others published for the same hardware."""
    check = "speed"
    figure = f"{run.mean:.1f} img/s for each of {run.ranks} GPUs"
    if job.number("expect"):
        good = run.mean >= job.number("expect")
        return finding(
            job, check, Status.PASS if good else Status.FAIL, f"{figure}; {job.number('expect'):g} was expected"
        )
    for shape, gpus, each, _total, _condition, source in _PUBLISHED:
        if job.shape and (shape, gpus) == (job.shape.name, run.ranks):
            status = Status.PASS if run.mean >= _ENOUGH * each else Status.WARN
            return finding(job, check, status, f"{figure} are {run.mean / each:.1%} of the {each} of {source}")
    return finding(job, check, Status.UNKNOWN, f"{figure}; no figure is published: give --set expect=NUMBER")


def _steadiness(run: _Run, job: Job) -> Finding:
    share = run.spread / run.mean if run.mean else 1.0
    words = f"the measurements vary by {share:.1%}"
    return finding(job, "steadiness", Status.PASS if share <= _STEADY else Status.WARN, words)


def _requirements(job: Job) -> tuple[Requirement, ...]:
    elsewhere = job.launcher.scheduler.program_of(image="horovod/horovod:0.28.1")
    built = f"Build it with HOROVOD_GPU_OPERATIONS=NCCL for python3 of the nodes, or {elsewhere}"
    installed = f"Install TensorFlow 2 for python3 of the nodes, or {elsewhere}"
    needs = [
        Requirement(Need.PYTHON_MODULE, "horovod", built),
        Requirement(Need.PYTHON_MODULE, "tensorflow", installed),
    ]
    if job.gpus:
        needs.append(Requirement(Need.GPUS, str(job.gpus), job.launcher.scheduler.more_gpus))
    return tuple(needs)


def _expectation(job: Job) -> Expectation:
    figures = []
    if job.number("expect"):
        figures.append(Figure(_PER_GPU, "at least", job.number("expect"), "img/s", "option expect", "you"))
    if job.nodes > 1:
        condition = "for each GPU, of what one node reaches (seed 000: 95.5 %)"
        figures.append(Figure(_EFFICIENCY, "at least", _ENOUGH, "", condition, "seed 000"))
    for shape, gpus, each, total, condition, source in _PUBLISHED:
        if job.shape is None or (shape, gpus) == (job.shape.name, job.ranks):
            figures.append(Figure(_PER_GPU, "about", each, "img/s", condition, source))
            figures.append(Figure(_TOTAL, "about", total, "img/s", condition, source))
    return tuple(figures)


TEMPLATE = Template(
    name="horovod_resnet50",
    title="Horovod: ResNet-50 on made-up pictures, with TensorFlow 2",
    about=(
        "One process for each GPU trains ResNet-50; no data set is needed. With several nodes one node trains alone "
        "first, and the result fails if all nodes together reach less than 90 % of its speed for each GPU. Horovod has "
        "had no release since 2023: this is for sites that have it, and for comparison with older figures. New work "
        "takes pytorch_ddp."
    ),
    ranks=Ranks.MPI,
    launchers=("pyxis", "srun", "mpirun", "sge", "pbs", "lsf", "kubernetes-job", "jobset", "mpijob"),
    options=(
        Option("batch", "pictures of a batch, for each GPU", Kind.INTEGER, 32, minimum=1),
        Option("iterations", "how often is measured, 10 batches each", Kind.INTEGER, 10, minimum=1),
        Option("compare", "train on one node alone first, where there are several", Kind.FLAG, default=True),
        Option("one_node", "img/s that one node reached before; 0: not known", Kind.NUMBER, 0.0, minimum=0),
        Option("expect", "img/s that each GPU must reach; 0: what is published", Kind.NUMBER, 0.0, minimum=0),
        Option("debug", "NCCL_DEBUG, such as INFO, which shows the network; default: of the node", Kind.NAME),
    ),
    payload=(Payload("resnet50.py"),),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
)  # fmt: skip
