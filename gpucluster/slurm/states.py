"""What the states of Slurm's nodes and jobs mean: which of them are healthy, busy or out of service.

Slurm prints the state of a node in two forms (Slurm 22.05 to 24.11):

    scontrol show node   a base state and flags in upper case, joined by `+`: IDLE+CLOUD+POWERED_DOWN
    sinfo                one word in lower case, with a sign for one of the flags behind it: idle~

`controller.rules.slurm_nodes` reads the first form, `sinfo_word` the second.
"""

from __future__ import annotations

from enum import StrEnum

from gpucluster.controller.rules import slurm_nodes

# --- nodes, as scontrol prints them -----


class NodeState(StrEnum):
    """Base states and flags of a node that matter here. Slurm has more; an unknown word is kept and means nothing."""

    ALLOCATED = "ALLOCATED"
    CLOUD = "CLOUD"
    COMPLETING = "COMPLETING"
    DOWN = "DOWN"
    DRAIN = "DRAIN"
    IDLE = "IDLE"
    MAINTENANCE = "MAINTENANCE"
    MIXED = "MIXED"
    NOT_RESPONDING = "NOT_RESPONDING"
    PLANNED = "PLANNED"
    POWERED_DOWN = "POWERED_DOWN"
    POWERING_DOWN = "POWERING_DOWN"
    POWERING_UP = "POWERING_UP"
    POWER_DOWN = "POWER_DOWN"
    POWER_UP = "POWER_UP"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"


#: The node is powered down, is powering down or up, or is about to.
POWER = frozenset(NodeState(flag) for flag in slurm_nodes.POWER)
#: A job, or a part of one, holds the node.
ALLOCATED = frozenset({NodeState.ALLOCATED, NodeState.MIXED})
#: A job holds the node, or Slurm cleans up after one.
BUSY = frozenset(NodeState(flag) for flag in slurm_nodes.BUSY)
#: slurmctld can't use the node now: its slurmd does not answer, or it takes no new jobs.
IMPAIRED = frozenset({NodeState.NOT_RESPONDING, NodeState.DRAIN})


def powering_up(flags: frozenset[str]) -> bool:
    """Whether Slurm waits for the node to register."""
    return NodeState.POWERING_UP in flags and NodeState.POWERING_DOWN not in flags


def powered_down(flags: frozenset[str]) -> bool:
    """Whether Slurm expects that nothing runs under the node's name."""
    return NodeState.POWERED_DOWN in flags and not powering_up(flags)


def power_requested(flags: frozenset[str]) -> bool:
    """Whether a job or an administrator wants the node powered up, whatever its other flags are."""
    return bool(flags & ALLOCATED) or NodeState.POWER_UP in flags or powering_up(flags)


def in_service(flags: frozenset[str]) -> bool:
    """Whether a slurmd has registered and Slurm counts on the node."""
    return NodeState.DOWN not in flags and not flags & POWER


# --- nodes, as sinfo prints them -----

#: The node takes jobs, or jobs, a reservation or the scheduler's plan have it.
SINFO_HEALTHY = frozenset(
    {"idle", "mixed", "allocated", "completing", "planned", "reserved", "maint", "npc", "perfctrs"}
)
#: Signs that are not a fault of the node: the scheduler has planned it (`-`), it is in a reservation for maintenance
#: (`$`), or it will reboot when its jobs have ended (`@`).
SINFO_HARMLESS_SIGNS = "-$@"
#: No new job starts on the node.
SINFO_CLOSED = frozenset({"drained", "draining", "down", "error", "fail", "failed", "failing", "inval", "unknown"})
#: No new job starts on the node because an operator, or a check, wants it so.
SINFO_DRAINED = frozenset({"drained", "draining"})
#: The node responds, and takes jobs again when an administrator resumes it.
SINFO_RESUMABLE = SINFO_DRAINED | {"down"}
#: A job runs on the node, or Slurm cleans up after one.
SINFO_BUSY = frozenset({"allocated", "completing", "draining", "failing", "mixed"})


#: A reservation holds the node, and no job of it runs there now.
SINFO_RESERVED = frozenset({"maint", "reserved"})


class NodeHealth(StrEnum):
    """What a state of sinfo means for a node."""

    #: It takes jobs, or has them.
    GOOD = "good"
    #: It takes no jobs, does not respond, or has no power.
    BAD = "bad"
    #: The word or the sign is not known here.
    UNKNOWN = "unknown"


def node_health(state: str) -> NodeHealth:
    """The meaning of a state of sinfo, such as `mixed-` or `idle*`."""
    word = sinfo_word(state)
    signs = state.lower().removeprefix(word).rstrip("+")
    if word in SINFO_CLOSED or set(signs) & set(slurm_nodes.SIGNS) - set(SINFO_HARMLESS_SIGNS):
        return NodeHealth.BAD
    return (
        NodeHealth.GOOD if word in SINFO_HEALTHY and not set(signs) - set(SINFO_HARMLESS_SIGNS) else NodeHealth.UNKNOWN
    )


def sinfo_word(state: str) -> str:
    """A state of sinfo without the signs behind it."""
    return state.lower().rstrip(slurm_nodes.SIGNS + "+")


# --- jobs -----


class JobState(StrEnum):
    """States of a job that matter here, as squeue prints them. Slurm has more."""

    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"


#: The job occupies nodes, or Slurm cleans up after it.
JOB_ON_NODES = (
    JobState.RUNNING,
    JobState.CONFIGURING,
    JobState.SUSPENDED,
    JobState.STOPPED,
    JobState.COMPLETING,
)
#: The job was given nodes, whether or not they are up.
JOB_HAS_NODES = frozenset({*JOB_ON_NODES, JobState.STAGE_OUT})
