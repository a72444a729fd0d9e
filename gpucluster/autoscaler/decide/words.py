"""The texts of decisions, for users and administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    DrainNodes,
    Fault,
    Hold,
    Join,
    Launch,
    MarkDown,
    PowerDown,
    SaveConsole,
    Terminate,
)
from gpucluster.autoscaler.policy import Scheduler


@dataclass(frozen=True, slots=True)
class SchedulerWords:
    """How messages call the scheduler and what belongs to it.

    Args:
        name: of the scheduler. `daemon`: its program on each node.
        not_requeued: about a job that is lost with its node. `release`: how a held job is released.
        no_node_yet: about a job that waits. `too_late`: about a node that did not register.
    """

    name: str
    daemon: str
    not_requeued: str
    release: str
    no_node_yet: str
    too_late: str


SCHEDULERS: Mapping[Scheduler, SchedulerWords] = {
    "slurm": SchedulerWords(
        name="Slurm",
        daemon="slurmd",
        not_requeued="The job was submitted with --no-requeue (or is interactive), so Slurm ends it instead of running "
        "it again",
        release="scontrol release",
        no_node_yet="Slurm has given it no node yet: the autoscaler launches nodes when Slurm powers them up",
        too_late="it did not register before Slurm's ResumeTimeout",
    ),
    "kubernetes": SchedulerWords(
        name="Kubernetes",
        daemon="kubelet",
        not_requeued="No controller made these pods, so nothing starts them again",
        release="kubectl annotate pod POD gpucluster.io/hold-",
        no_node_yet="No new node was chosen for it. If none fits, see the annotation gpucluster.io/why of its pods",
        too_late="it did not register in time",
    ),
}

# What an action is called in the log, in the ledger and in the output of commands.
VERBS: Mapping[type, str] = {
    Launch: "launch",
    Terminate: "terminate",
    PowerDown: "power down",
    MarkDown: "mark down",
    DrainNodes: "drain",
    Delay: "delay",
    Hold: "hold",
    Annotate: "annotate",
    Join: "join",
    SaveConsole: "save the console",
}

# Separates the cloud's words from the advice for an administrator. The advice goes to the log and the status only:
# users can do nothing about it.
ADVICE = " | "
_FAULTS = {
    Fault.CAPACITY: "the cloud has no free host",
    Fault.LIMIT: "a limit or quota of the tenancy is reached",
    Fault.CONFIGURATION: "the cloud can't do what the pool's configuration asks for",
    Fault.BOOT: "new nodes don't come into service",
    Fault.TRANSIENT: "the cloud gives no clear answer",
    Fault.LOST: "instances terminate without a request of the autoscaler",
}


def timestamp(at: float) -> str:
    """A time for messages, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def describe_fault(kind: Fault | None, message: str = "") -> str:
    """What failed, followed by the cloud's words without the advice."""
    known = _FAULTS[kind] if kind else "the cause is not known"
    details = message.partition(ADVICE)[0]
    return f"{known} ({details})" if details else known
