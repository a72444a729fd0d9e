"""The vocabulary of the autoscaler: what Slurm says, what the cloud says, what we remember, and what is to be done.

Values only: nothing here asks a clock, a file or a service. Times are seconds of the epoch as the loop's own clock
counts them (it never jumps); durations are seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# --- what Slurm says -----

_POWER = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"})


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an elastic pool, as `scontrol show nodes` has it.

    Args:
        pool: the pool whose names it is one of; empty for a name of no pool.
        flags: the words of State, such as {"IDLE", "CLOUD", "POWERED_DOWN"}.
        reason: why it is down or drained; `reason_user`: who said so.
        instance_id: what slurmd said when it registered; empty before, and with Slurm before 23.11.
    """

    name: str
    pool: str
    flags: frozenset[str]
    reason: str = ""
    reason_user: str = ""
    instance_id: str = ""

    @property
    def powering_up(self) -> bool:
        """Slurm waits for it to register."""
        return "POWERING_UP" in self.flags and "POWERING_DOWN" not in self.flags

    @property
    def powering_down(self) -> bool:
        """Slurm has given it up; it takes no job until SuspendTimeout has passed."""
        return "POWERING_DOWN" in self.flags

    @property
    def powered_down(self) -> bool:
        """Nothing is expected to run under its name."""
        return "POWERED_DOWN" in self.flags and not self.powering_up

    @property
    def down(self) -> bool:
        """Out of service."""
        return "DOWN" in self.flags

    @property
    def drained(self) -> bool:
        """Takes no new job because somebody said so."""
        return "DRAIN" in self.flags

    @property
    def busy(self) -> bool:
        """Has a job, or a part of one."""
        return bool(self.flags & {"ALLOCATED", "MIXED", "COMPLETING"})

    @property
    def silent(self) -> bool:
        """Slurmctld can't reach its slurmd."""
        return "NOT_RESPONDING" in self.flags

    @property
    def in_service(self) -> bool:
        """A slurmd has registered, and Slurm counts on the node."""
        return not self.down and not self.flags & _POWER


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits or runs, as `squeue` has it.

    Args:
        id: Slurm's job id, a number; of an array, one task once it has been split off.
        gang: the jobs that start together: the id of a heterogeneous job's leader, else the id itself.
        state: PENDING, CONFIGURING, RUNNING, COMPLETING...
        reason: why it waits, in Slurm's words.
        partitions: where it may run. `nodes`: what it was given; `node_count`: how many it asks for.
        restarts: how often it was requeued.
        eligible_at: when it may be given nodes; 0 if that is not known.
        requeue: whether Slurm requeues it when a node is lost.
    """

    id: str
    gang: str
    state: str
    reason: str
    partitions: tuple[str, ...]
    nodes: tuple[str, ...]
    node_count: int
    priority: int = 0
    restarts: int = 0
    eligible_at: float = 0.0
    requeue: bool = True
    user: str = ""
    comment: str = ""

    @property
    def pending(self) -> bool:
        """Waits for nodes, or for something else."""
        return self.state == "PENDING"

    @property
    def holding(self) -> bool:
        """Was given its nodes, whether or not they are there."""
        return self.state in ("CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT")


@dataclass(frozen=True, slots=True)
class Intent:
    """What a hook wrote down. Correctness never depends on it: a lost one loses the grouping only.

    Args:
        kind: resume, suspend or resume_fail.
        jobs: which jobs the nodes are for (resume, where Slurm said so).
    """

    kind: str
    at: float
    nodes: tuple[str, ...]
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# --- what the cloud says -----

# lifecycle states in which an instance costs money or soon will
_LIVE = frozenset({"PROVISIONING", "STARTING", "RUNNING", "STOPPING", "STOPPED", "CREATING_IMAGE", "MOVING"})


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that carries the tags of this cluster and the name of an elastic node.

    Args:
        node: the tag `node`. `generation`: the tag `generation`; 0 if it has none that is a number.
        state: OCI's lifecycle state.
        created_at: when the cloud accepted it.
        maintenance_at: when OCI will reboot it for maintenance; None if it will not.
    """

    id: str
    node: str
    pool: str
    generation: int
    state: str
    created_at: float
    availability_domain: str = ""
    maintenance_at: float | None = None

    @property
    def live(self) -> bool:
        """It is there, or on its way."""
        return self.state in _LIVE


class Fault(StrEnum):
    """Why a launch came to nothing, by what has to be done about it."""

    CAPACITY = "capacity"  # no host is free: another pool or domain, or later
    LIMIT = "limit"  # a limit or quota of the tenancy: only a person can raise it
    CONFIGURATION = "configuration"  # the request can never be met as it is
    BOOT = "boot"  # it was launched and never became a node
    TRANSIENT = "transient"  # nobody knows: the same request again, with the same token
    LOST = "lost"  # it was there and went without our doing


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one launch ended, as the executor or the cloud's own record of the work says.

    Args:
        instance_id: of a launch that was accepted; `fault` is None then.
        message: the cloud's words, with the code before them.
    """

    token: str
    node: str
    instance_id: str = ""
    fault: Fault | None = None
    message: str = ""
    request_id: str = ""


# --- one look at everything -----


@dataclass(frozen=True, slots=True)
class Observation:
    """One look. Slurm was asked before the cloud: what the cloud lacks may be younger, never older.

    Args:
        nodes: by name, elastic pools only; None if Slurm could not be asked.
        jobs: by id, those that are not finished; None as above.
        instances: None if the cloud could not be asked.
        outcomes: launches that ended since the last look. `intents`: hooks since the last look.
        in_flight: tokens of the launches that the executor has queued or sent and not yet had an answer for.
        joining: instances that are being configured now; `join_failed`: instance -> words, since the last look.
        unasked: instances whose configuration was decided on, and then nobody could be asked for it.
    """

    nodes: Mapping[str, Node] | None
    jobs: Mapping[str, Job] | None
    instances: tuple[Instance, ...] | None
    outcomes: tuple[Outcome, ...] = ()
    intents: tuple[Intent, ...] = ()
    in_flight: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    join_failed: Mapping[str, str] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()


# --- what we remember -----


@dataclass(frozen=True, slots=True)
class Slot:
    """One name, and the instance that is to stand behind it. Written down before the launch is sent.

    Args:
        state: one of
            "intended": to be launched, or nobody knows yet; the only one in which a launch may be sent.
            "held": was intended when the autoscaler was paused.
            "launched": the cloud said yes.
            "joining": RUNNING, and being configured. "running": RUNNING, and its slurmd is awaited.
            "up": a slurmd has registered.
            "failed": the launch, or the instance before it came into service, came to nothing; `fault` says how.
            "dropping": Slurm was told to power it down. "ending": its instance, if there is one, is to be gone.
        since: when it came into this state; `asked_at`: when this generation was first intended.
        jobs: the gangs that it was wanted for; empty for a node that a person powered up.
        tries: launches that failed for these gangs, this one included.
        joined_at: when its configuration was asked for; 0 if it was not.
        missing_since: when the cloud's listing first lacked an instance that should be there; 0 if it does not.
        strikes: in how many looks it was missing. `silent_since`: when its slurmd was first not reached; 0 if it is.
        ended_at: when its instance was last asked to be terminated; 0 if it was not.
    """

    node: str
    pool: str
    generation: int
    token: str
    state: str
    since: float
    asked_at: float
    jobs: tuple[str, ...] = ()
    instance_id: str = ""
    tries: int = 0
    joined_at: float = 0.0
    missing_since: float = 0.0
    strikes: int = 0
    fault: str = ""
    message: str = ""
    request_id: str = ""
    silent_since: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Gang:
    """The tries of the jobs that start together (by the leader's id).

    Args:
        attempts: how often it was rolled back. `not_before`: when the next try is.
        first_failure: when a launch of the present try first failed; 0 if none did.
        message: the words on the job. `seen_at`: when this was last written.
        admitted_at: when it passed the gates; 0 if it did not, or was rolled back since. `restarts`: how often its jobs
            had been requeued then: what Slurm gives them after that has not passed.
        refused_at: when its nodes were last given up. `refusals`: how often the gates were shut for it, in a row.
        held: its jobs were held until a person releases them.
    """

    id: str
    attempts: int = 0
    not_before: float = 0.0
    first_failure: float = 0.0
    fault: str = ""
    message: str = ""
    seen_at: float = 0.0
    admitted_at: float = 0.0
    refused_at: float = 0.0
    refusals: int = 0
    held: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A pool (in its availability domain) that is not asked for a while.

    Args:
        failures: how often in a row; each makes it longer.
        probing: one launch is let through to see whether it is over.
    """

    pool: str
    until: float
    fault: str
    message: str
    failures: int = 1
    probing: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What must outlive the process. `id` makes the launch tokens of a new ledger differ from those of a lost one.

    Args:
        launched_at: times of the launches of the last hour.
        boot_failures: by pool, nodes in a row that never registered.
        healed_at: by node, when Slurm was last told to make a node usable again that it gave up.
        generations: by node, the last one that was ever intended. A token that was used once is refused for a day
            when its instance has gone (409 InvalidatedRetryToken), so numbers must not begin again with the slot.
        node_count: how many nodes Slurm last listed, to notice a listing that is cut short.
        paused: why nothing is done; empty if it is.
    """

    id: str
    slots: Mapping[str, Slot] = field(default_factory=dict)
    gangs: Mapping[str, Gang] = field(default_factory=dict)
    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    launched_at: tuple[float, ...] = ()
    boot_failures: Mapping[str, int] = field(default_factory=dict)
    orphans_seen: Mapping[str, float] = field(default_factory=dict)
    healed_at: Mapping[str, float] = field(default_factory=dict)
    node_count: int = 0
    paused: str = ""
    generations: Mapping[str, int] = field(default_factory=dict)

    def token(self, node: str, generation: int) -> str:
        """The opc-retry-token of one launch: the same for the same, whoever asks again (at most 64 characters)."""
        return hashlib.sha256(f"{self.id}/{node}/{generation}".encode()).hexdigest()[:40]


# --- what is to be done -----


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch the instance of a node from its pool's instance configuration."""

    node: str
    pool: str
    generation: int
    token: str
    why: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Terminate an instance, if it still carries our tags.

    Args:
        unless_wanted: ask Slurm once more, and leave it alone if the node is wanted again by now.
    """

    instance_id: str
    node: str
    pool: str
    why: str
    unless_wanted: bool = True


@dataclass(frozen=True, slots=True)
class PowerDown:
    """Give nodes up (`power_down_force`): their jobs are requeued, and they can be powered up again afterwards."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MarkDown:
    """Take nodes out of service, with the reason that `sinfo -R` shows."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let nodes finish what they do and take nothing new."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Delay:
    """Let a job wait, with words on it."""

    job: str
    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold a job until a person releases it, with words on it."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Put words on a job."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """Have a new instance configured, in a pool without a baked image."""

    node: str
    pool: str
    instance_id: str
    why: str


@dataclass(frozen=True, slots=True)
class SaveConsole:
    """Keep the console's output of an instance that did not become a node."""

    instance_id: str
    node: str
    why: str


Action = Launch | Terminate | PowerDown | MarkDown | Drain | Delay | Hold | Tell | Join | SaveConsole


@dataclass(frozen=True, slots=True)
class Note:
    """A decision about a node, job, instance or pool that `explain` shows, also where nothing is done."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, what is to be remembered before it is done, and why.

    Actions of one plan may be carried out in their order, and all but the launches before the next look.
    """

    actions: tuple[Action, ...]
    memory: Memory
    notes: tuple[Note, ...] = ()
