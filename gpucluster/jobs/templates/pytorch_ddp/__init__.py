"""ResNet-18 on CIFAR-10 with PyTorch's DistributedDataParallel, as seed 003 trained it, without its faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from gpucluster.jobs.outputs import finding, number, objects
from gpucluster.node_agent.checks.model import Finding, Status

_ACCURACY = "accuracy"
#: Seed 003 reached 0.8046 after 10 epochs, and 0.856 after 200.
_LIMIT = 0.80
_EPOCHS = 10
#: Images of a step, in all ranks together, up to which the learning rate can grow with them.
_LARGEST_STEP = 2048
#: Channels of the first layer of ResNet-18.
_WIDTH = 64
_KEYS = ("epoch", "loss", _ACCURACY, "seconds", "images_per_second")


def _per_node(job: Job) -> int:
    return job.gpus or int(job.number("ranks_per_node"))


def _requirements(job: Job) -> tuple[Requirement, ...]:
    how = f"Install PyTorch on the nodes (Debian: python3-torch), or {job.launcher.scheduler.program_of()}"
    needs = [Requirement(Need.PYTHON_MODULE, "torch", how)]
    if job.gpus:
        needs.append(Requirement(Need.GPUS, str(job.gpus), job.launcher.scheduler.more_gpus))
    if not job.number("synthetic"):
        how = (
            "Bring it to the share with `gpucluster job prepare pytorch_ddp`, or copy cifar-10-python.tar.gz there and "
            "name it: --set data=FILE; or try --set synthetic=10000"
        )
        needs.append(Requirement(Need.DATA, job.text("data"), how))
    if job.text("weights"):
        how = "Copy torchvision's file of weights for resnet18 to the share"
        needs.append(Requirement(Need.DATA, job.text("weights"), how))
    if job.text("checkpoint"):
        # The folder: PyTorch writes the file itself.
        how = "Make its folder on the share, where you can write"
        needs.append(Requirement(Need.PLACE, job.text("checkpoint").rpartition("/")[0] or "/", how))
    return tuple(needs)


def _judgeable(job: Job) -> str:
    """Why the published accuracy does not apply to this job; "" if it does."""
    images = job.ranks * int(job.number("batch"))
    if job.number("synthetic"):
        return "the data set is made up"
    if job.number("width") != _WIDTH:
        return f"the network has {job.number('width'):g} channels and not {_WIDTH}"
    if job.number("epochs") < _EPOCHS:
        return f"there are fewer epochs than {_EPOCHS}"
    if images > _LARGEST_STEP:
        return f"a step has {images} images, more than {_LARGEST_STEP}: set a smaller batch"
    return ""


def _expectation(job: Job) -> Expectation:
    limit = job.number("expect")
    if limit:
        return (Figure(_ACCURACY, "at least", limit, "", "option expect", "you"),)
    figures = (
        Figure(_ACCURACY, "about", 0.8046, "", "after 10 epochs, 2 nodes with 1 A100 each, pre-trained", "seed 003"),
        Figure(_ACCURACY, "about", 0.856, "", "after 200 epochs, the same", "seed 003"),
        Figure("seconds", "about", 4.4, "s", "an epoch, the same", "seed 003"),
    )
    if _judgeable(job):
        return figures
    return (Figure(_ACCURACY, "at least", _LIMIT, "", f"after {_EPOCHS} epochs or more", "seed 003"), *figures)


def _judge(text: str, job: Job) -> JobResult:
    # A requeued job goes on in the same output: the last word on each epoch counts.
    epochs: dict[int, Mapping[str, Any]] = {}
    documents = list(objects(text))
    for each in documents:
        if all(number(each, key) is not None for key in _KEYS):
            epochs[int(each["epoch"])] = each
    steps = tuple({key: number(epochs[epoch], key) or 0.0 for key in _KEYS} for epoch in sorted(epochs))
    values = {key: value for key, value in steps[-1].items() if key != "epoch"} if steps else {}
    findings = (_finished(job, steps), _together(job, documents), _learned(job, steps))
    return JobResult(findings, values, {"seconds": "s", "images_per_second": "images/s"}, steps)


def _finished(job: Job, steps: tuple[Mapping[str, float], ...]) -> Finding:
    epochs, last = int(job.number("epochs")), int(steps[-1]["epoch"]) if steps else 0
    if last < epochs:
        return finding(job, "epochs", Status.UNKNOWN, f"the output ends after {last} of {epochs} epochs")
    return finding(job, "epochs", Status.PASS, f"{last} epochs are finished")


def _together(job: Job, documents: list[dict[str, Any]]) -> Finding:
    ranks = {int(each["ranks"]) for each in documents if "epoch" in each and number(each, "ranks") is not None}
    if not ranks:
        return finding(job, "ranks", Status.UNKNOWN, "no line states how many ranks took part")
    if ranks != {job.ranks}:
        numbers = f"{' and '.join(map(str, sorted(ranks)))} took part, and not {job.ranks}"
        return finding(job, "ranks", Status.FAIL, f"ranks: {numbers}")
    return finding(job, "ranks", Status.PASS, f"{job.ranks} took part")


def _learned(job: Job, steps: tuple[Mapping[str, float], ...]) -> Finding:
    if not steps:
        return finding(job, _ACCURACY, Status.UNKNOWN, "no epoch was finished")
    if steps[-1]["epoch"] < job.number("epochs"):
        return finding(job, _ACCURACY, Status.UNKNOWN, f"{steps[-1][_ACCURACY]:.4f} before the end is not a result")
    reached, why = steps[-1][_ACCURACY], "" if job.number("expect") else _judgeable(job)
    result = f"accuracy {reached:.4f} after {_epochs(steps)}"
    if why:
        return _fell(job, steps, f"{result}; {why}, so only the loss is judged")
    limit = job.number("expect") or _LIMIT
    status = Status.PASS if reached >= limit else Status.FAIL
    return finding(job, _ACCURACY, status, f"{result} {'reaches' if status is Status.PASS else 'is below'} {limit:g}")


def _epochs(steps: tuple[Mapping[str, float], ...]) -> str:
    epoch = int(steps[-1]["epoch"])
    return f"{epoch} epoch" if epoch == 1 else f"{epoch} epochs"


def _fell(job: Job, steps: tuple[Mapping[str, float], ...], result: str) -> Finding:
    if len(steps) == 1:
        return finding(job, "loss", Status.PASS, f"{result}; one epoch shows no course")
    first, last = steps[0]["loss"], steps[-1]["loss"]
    status = Status.PASS if last < first else Status.FAIL
    return finding(job, "loss", status, f"{result}: it went from {first:.4f} to {last:.4f}")


TEMPLATE = Template(
    name="pytorch_ddp",
    title="PyTorch DDP: ResNet-18 learns CIFAR-10",
    about=(
        "One rank for each GPU (NCCL), or on processors (gloo) where the nodes have none. Nothing is fetched: the data "
        "set lies on the share, and its checksums are compared. It prints one line of JSON for each epoch, and writes "
        "a checkpoint: a job that is requeued goes on after its last epoch."
    ),
    ranks=Ranks.ENVIRONMENT,
    launchers=(
        "srun",
        "torchrun",
        "pyxis",
        "mpirun",
        "sge",
        "pbs",
        "lsf",
        "kubernetes-job",
        "jobset",
        "pytorchjob",
        "trainjob",
    ),
    options=(
        Option("data", "cifar-10-python.tar.gz or its folder, on the share", Kind.PATH, read_only=True),
        Option("synthetic", "a made-up data set with so many images instead; 0: none", Kind.INTEGER, 0, minimum=0),
        Option("epochs", "how often all images are seen", Kind.INTEGER, _EPOCHS, minimum=1),
        Option("batch", "images of a step, in each rank", Kind.INTEGER, 128, minimum=1),
        Option("learning_rate", "for 256 images in a step; it grows with them", Kind.NUMBER, 0.1, minimum=0),
        Option("seed", "of all random numbers", Kind.INTEGER, 0, minimum=0),
        Option("width", "channels of the first layer; fewer for a quick trial", Kind.INTEGER, _WIDTH, minimum=1),
        Option("weights", "torchvision's file of weights for resnet18, to begin with", Kind.PATH, read_only=True),
        Option("checkpoint", "its file, on the share; default: beside the script, with the job's number", Kind.TEXT),
        Option("ranks_per_node", "ranks on each node where no GPUs are used", Kind.INTEGER, 1, minimum=1),
        Option("expect", "accuracy to reach; 0: 0.80 after 10 epochs", Kind.NUMBER, 0.0, minimum=0, maximum=1),
    ),
    payload=(Payload("train.py"),),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
    per_node=_per_node,
    needs_gpus=False,
    data_sets={"data": "cifar10"},
)
