"""TensorFlow's MultiWorkerMirroredStrategy on MNIST, as seed 002 ran it, on any number of nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

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
from gpucluster.jobs.outputs import finding, last_run, objects
from gpucluster.node_agent.checks.model import Finding, Status

_LOSS, _ACCURACY, _SECONDS = "loss", "accuracy", "seconds_per_epoch"
_UNITS = {_LOSS: "", _ACCURACY: "", _SECONDS: "s"}
#: All workers report the loss of all of them together; what is printed is rounded.
_EQUAL = 1e-3
#: Seed 002: loss and accuracy of the third epoch; 64 ms for each step after the first epoch.
_PUBLISHED = ((_LOSS, 2.0823), (_ACCURACY, 0.4592), (_SECONDS, 4.5))
_CONDITION, _SOURCE = "3 epochs with 70 steps, 2 nodes with 8 A100 each", "seed 002"
# What Keras prints at the end of an epoch, if the training is not ours. Before, it shows how far it is.
_FIRST = re.compile(r"^Epoch 1/\d+")
_KERAS = re.compile(r"^(\d+)/\1 .{0,80}?(\d+)s\b.{0,40}? - loss: ([\d.]+|nan|inf) - accuracy: ([\d.]+)")

#: Epochs of a worker: loss, accuracy, seconds.
_Epochs = list[tuple[float, float, float]]


def _workers(text: str) -> dict[int, _Epochs]:
    by_worker: dict[int, _Epochs] = {}
    for each in objects(text):
        try:
            epoch = (float(each["loss"]), float(each["accuracy"]), float(each["seconds"]))
            by_worker.setdefault(int(each["worker"]), []).append(epoch)
        except (KeyError, TypeError, ValueError):
            continue
    return by_worker or dict(enumerate(_of_keras(text)))


def _of_keras(text: str) -> Iterator[_Epochs]:
    """The workers in the output of Keras itself: the outputs of all of them, one after the other."""
    worker: _Epochs = []
    for line in text.splitlines():
        if _FIRST.match(line):
            if worker:
                yield worker
            worker = []
        match = _KERAS.match(line)
        if match:
            worker.append((_number(match[3]), _number(match[4]), _number(match[2])))
    if worker:
        yield worker


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _judge(text: str, job: Job) -> JobResult:
    workers = _workers(last_run(text))
    expected = int(job.number("epochs"))
    complete = [epochs for _number, epochs in sorted(workers.items()) if len(epochs) >= expected]
    findings = [_all_there(len(workers), len(complete), job)]
    if not complete:
        return JobResult(tuple(findings))
    first = complete[0]
    findings += [_falls(complete, job), _equal(complete, job)]
    # The first epoch contains the start.
    later = [seconds for _loss, _accuracy, seconds in first[1:]] or [first[0][2]]
    values = {_LOSS: first[-1][0], _ACCURACY: first[-1][1], _SECONDS: round(sum(later) / len(later), 3)}
    steps = tuple(
        {"epoch": float(number), _LOSS: loss, _ACCURACY: accuracy, "seconds": seconds}
        for number, (loss, accuracy, seconds) in enumerate(first, start=1)
        if math.isfinite(loss)
    )
    return JobResult(
        tuple(findings), {key: value for key, value in values.items() if math.isfinite(value)}, _UNITS, steps
    )


def _all_there(seen: int, complete: int, job: Job) -> Finding:
    check = "workers"
    if seen > job.nodes:
        return finding(job, check, Status.FAIL, f"{seen} workers trained, and not {job.nodes}")
    if not seen:
        return finding(job, check, Status.UNKNOWN, "no worker has reported: the program ended before it trained")
    if complete < job.nodes:
        words = f"{complete} of {job.nodes} workers have reported all epochs: the output is cut off, or a worker ended"
        return finding(job, check, Status.UNKNOWN, words)
    return finding(job, check, Status.PASS, f"all {complete} workers have reported all epochs")


def _falls(workers: list[_Epochs], job: Job) -> Finding:
    check = "loss"
    losses = [loss for loss, _accuracy, _seconds in workers[0]]
    course = f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    if not all(math.isfinite(loss) for loss in losses):
        return finding(job, check, Status.FAIL, "the loss is not a number: try a smaller --set learning_rate")
    if len(losses) == 1:
        return finding(job, check, Status.UNKNOWN, f"{course}: one epoch shows no course")
    return finding(job, check, Status.PASS if losses[-1] < losses[0] else Status.FAIL, course)


def _equal(workers: list[_Epochs], job: Job) -> Finding:
    check = "together"
    if job.nodes == 1:
        return finding(job, check, Status.SKIP, "there is one worker")
    apart = [
        epoch
        for epoch, each in enumerate(zip(*workers, strict=False), start=1)
        if any(not math.isclose(worker[0], each[0][0], rel_tol=_EQUAL) for worker in each)
    ]
    if apart:
        words = f"the workers report different losses in epoch {apart[0]}: they did not train together"
        return finding(job, check, Status.FAIL, words)
    if len(workers) < job.nodes:
        return finding(job, check, Status.UNKNOWN, "not all workers have reported")
    return finding(job, check, Status.PASS, "all workers report the same loss in each epoch")


def _requirements(job: Job) -> tuple[Requirement, ...]:
    elsewhere = job.launcher.scheduler.program_of("nvcr.io", "nvidia/tensorflow:24.06-tf2-py3")
    installed = f"Install TensorFlow 2 for python3 of the nodes, or {elsewhere}"
    data = (
        "Bring it to the share with `gpucluster job prepare tensorflow_mnist`, or copy mnist.npz there and name it: "
        "--set data=FILE"
    )
    needs = [Requirement(Need.PYTHON_MODULE, "tensorflow", installed), Requirement(Need.DATA, job.text("data"), data)]
    if job.gpus:
        needs.append(Requirement(Need.GPUS, str(job.gpus), job.launcher.scheduler.more_gpus))
    return tuple(needs)


def _expectation(_job: Job) -> Expectation:
    return tuple(Figure(name, "about", value, _UNITS[name], _CONDITION, _SOURCE) for name, value in _PUBLISHED)


def _one(_job: Job) -> int:
    return 1


TEMPLATE = Template(
    name="tensorflow_mnist",
    title="TensorFlow: training on several nodes with MNIST",
    about=(
        "MultiWorkerMirroredStrategy with one worker on each node, which uses all of its GPUs, or its processors where "
        "there are none. The data set is a file: nothing is downloaded. TensorFlow 2.16 and later need the package "
        "tf-keras, because Keras 3 does not train on several workers. The result fails if the loss does not fall, or "
        "differs between workers."
    ),
    ranks=Ranks.ENVIRONMENT,
    launchers=("pyxis", "srun", "mpirun", "sge", "pbs", "lsf", "kubernetes-job", "jobset", "pytorchjob", "trainjob"),
    options=(
        Option("data", "mnist.npz or its folder, on the share", Kind.PATH, read_only=True),
        Option("epochs", "how often the steps are repeated", Kind.INTEGER, 3, minimum=1),
        Option("steps", "steps of an epoch", Kind.INTEGER, 70, minimum=1),
        Option("learning_rate", "of stochastic gradient descent", Kind.NUMBER, 0.001, minimum=0),
    ),
    payload=(Payload("train.py"),),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
    per_node=_one,
    needs_gpus=False,
    data_sets={"data": "mnist"},
)  # fmt: skip
