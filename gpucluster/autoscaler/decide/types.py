"""The types of the autoscaler: what Slurm reports, what the cloud reports, what is remembered, what is to be done.

Values only. Times are seconds of the epoch by the daemon's own clock, which never jumps; durations are seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpucluster.oci.states import LIVE
from gpucluster.slurm import states
from gpucluster.slurm.states import JOB_HAS_NODES, JobState, NodeState

# --- what Slurm reports -----


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an elastic pool, as `scontrol show nodes` prints it.

    Args:
        pool: the pool that the name belongs to; empty if it belongs to none.
        flags: the words of State, such as {"IDLE", "CLOUD", "POWERED_DOWN"} (`slurm.states.NodeState`).
        reason: why it is down or drained; `reason_user`: who set the reason.
        instance_id: the OCID that slurmd reported when it registered; empty before, and with Slurm before 23.11.
        address: its private address, with Kubernetes; monitoring asks Slurm itself.
    """

    name: str
    pool: str
    flags: frozenset[str]
    reason: str = ""
    reason_user: str = ""
    instance_id: str = ""
    address: str = ""

    @property
    def powering_up(self) -> bool:
        """Slurm waits for it to register."""
        return states.powering_up(self.flags)

    @property
    def powering_down(self) -> bool:
        """Slurm has given it up; it takes no job until SuspendTimeout has passed."""
        return NodeState.POWERING_DOWN in self.flags

    @property
    def powered_down(self) -> bool:
        """Slurm expects that nothing runs under its name."""
        return states.powered_down(self.flags)

    @property
    def down(self) -> bool:
        """Out of service."""
        return NodeState.DOWN in self.flags

    @property
    def drained(self) -> bool:
        """Takes no new job because an administrator, a health check or gpucluster drained it."""
        return NodeState.DRAIN in self.flags

    @property
    def busy(self) -> bool:
        """Has a job, or Slurm cleans up after one."""
        return bool(self.flags & states.BUSY)

    @property
    def silent(self) -> bool:
        """The controller can't reach its slurmd."""
        return NodeState.NOT_RESPONDING in self.flags

    @property
    def in_service(self) -> bool:
        """A slurmd has registered, and Slurm counts on the node."""
        return states.in_service(self.flags)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits or runs, as `squeue` prints it.

    Args:
        id: Slurm's job id, a number; of an array, one task after Slurm has split it off.
        gang: the jobs that start together: the id of a heterogeneous job's leader, else the id itself.
        state: PENDING, CONFIGURING, RUNNING, COMPLETING... (`slurm.states.JobState`)
        reason: why it waits, in Slurm's words.
        partitions: where it may run. `nodes`: what it was given; `node_count`: how many it asks for.
        restarts: how often it was requeued.
        eligible_at: when it may be given nodes; 0 if that is not known.
        requeue: whether Slurm requeues it when a node is lost.
        account: Slurm's account that it is charged to; empty without accounting.
        called: other names by which users know it, as `namespace/name`: with Kubernetes its pods and what made them.
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
    called: frozenset[str] = frozenset()
    account: str = ""

    @property
    def pending(self) -> bool:
        """Waits for nodes, or for something else."""
        return self.state == JobState.PENDING

    @property
    def holding(self) -> bool:
        """Was given its nodes, whether or not they are up."""
        return self.state in JOB_HAS_NODES


@dataclass(frozen=True, slots=True)
class Intent:
    """A record that one of Slurm's hooks wrote. A lost record loses the grouping of nodes only, never correctness.

    Args:
        kind: resume, suspend or resume_fail.
        jobs: for resume, which jobs the nodes are for, where Slurm reported it.
    """

    kind: str
    at: float
    nodes: tuple[str, ...]
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# --- what the cloud reports -----


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """An instance that carries the tags of this cluster and the name of an elastic node.

    Args:
        node: the tag `node`. `generation`: the tag `generation`; 0 if it is missing or not a number.
        state: OCI's lifecycle state (`oci.states.LifecycleState`).
        created_at: when the cloud accepted it.
        maintenance_at: when OCI will reboot it for maintenance; None if no reboot is due.
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
        """It exists or is being created, and is not ending."""
        return self.state in LIVE


class Fault(StrEnum):
    """Why a launch or a node failed, by what has to be done about it."""

    CAPACITY = "capacity"  # no host is free: try another pool or domain, or try later
    LIMIT = "limit"  # a limit or quota of the tenancy: only an administrator can raise it
    CONFIGURATION = "configuration"  # the request can never succeed as it is
    BOOT = "boot"  # it was launched and did not become a node
    TRANSIENT = "transient"  # the result is unknown: send the same request again, with the same token
    LOST = "lost"  # it existed, and terminated without a request of the autoscaler


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one launch ended, as the executor or the cloud's work request reports it.

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


# --- one observation of everything -----


@dataclass(frozen=True, slots=True)
class Observation:
    """What one reconcile pass observed. Slurm is asked before the cloud, so the cloud's answer is never the older one.

    Args:
        nodes: by name, elastic pools only; None if Slurm did not answer.
        jobs: by id, those that are not finished; None as above.
        instances: None if the cloud did not answer.
        outcomes: launches that ended since the last pass. `intents`: records of hooks since the last pass.
        in_flight: tokens of launches that the executor has queued or sent, and that have no answer yet.
        joining: instances that are being configured now; `join_failed`: instance -> message, since the last pass.
        unasked: instances that are to be configured, and whose request could not be written.
        unfit: instance -> what its checks at boot found, so that its slurmd does not start. With Kubernetes that is in
            `join_failed`.
        spent: account -> money of this month, where accounts have budgets; None if it is not known.
        looking_since: since when the autoscaler looks without an interruption. The failure of nodes that were asked
            for before may be its own doing: it was not there to configure them, or to answer Slurm.
    """

    nodes: Mapping[str, Node] | None
    jobs: Mapping[str, Job] | None
    instances: tuple[CloudInstance, ...] | None
    outcomes: tuple[Outcome, ...] = ()
    intents: tuple[Intent, ...] = ()
    in_flight: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    join_failed: Mapping[str, str] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()
    unfit: Mapping[str, str] = field(default_factory=dict)
    looking_since: float = 0.0
    spent: Mapping[str, float] | None = None


# --- what is remembered -----


class ClaimState(StrEnum):
    """The states of a node claim, in the order of a normal life. The ledger stores these strings."""

    INTENDED = "intended"  # to be launched, or the result is unknown; only in this state may a launch be sent
    HELD = "held"  # was INTENDED when the autoscaler was paused
    LAUNCHED = "launched"  # the cloud accepted the launch
    JOINING = "joining"  # the instance is RUNNING and is being configured
    RUNNING = "running"  # the instance is RUNNING and its slurmd has not registered yet
    UP = "up"  # a slurmd has registered
    FAILED = "failed"  # the launch, or the instance before it came into service, failed; `fault` is how
    DROPPING = "dropping"  # Slurm is to power the node down
    ENDING = "ending"  # its instance, if there is one, is to be terminated


#: A launch may still be sent, or sent again.
UNANSWERED = frozenset({ClaimState.INTENDED, ClaimState.HELD})
#: The instance runs, and its slurmd has not registered.
BOOTING = frozenset({ClaimState.JOINING, ClaimState.RUNNING})
#: The instance runs or ran.
STARTED = BOOTING | {ClaimState.UP}
#: The cloud accepted an instance, and it is not in service yet.
AWAITED = BOOTING | {ClaimState.LAUNCHED}
#: The cloud accepted an instance.
ACCEPTED = AWAITED | {ClaimState.UP}
#: The node is being given up.
RELEASED = frozenset({ClaimState.DROPPING, ClaimState.ENDING})


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """The claim on an instance for one node name. It is written to the ledger before the launch is sent.

    Args:
        generation: counts the launches of this name.
        token: the opc-retry-token of the launch; empty if there was no launch.
        since: when it came into its state; `asked_at`: when this generation was first intended.
        jobs: the gangs that need it; empty for a node that an administrator powered up.
        tries: launches that failed for these gangs, this one included.
        joined_at: when its configuration was requested; 0 if it was not.
        missing_since: when the cloud's listing first lacked an instance that should exist; 0 if it lists it.
        strikes: in how many passes the listing lacked it. `silent_since`: since when its slurmd can't be reached; 0
            if it can.
        fault: why its launch or its instance failed; None if neither did. `message`: the words that belong to it.
        ended_at: when its instance was last asked to be terminated; 0 if it was not.
        bad_host: what failed on its instance, where that shows that the physical host is bad; empty if nothing does.
    """

    node: str
    pool: str
    generation: int
    token: str
    state: ClaimState
    since: float
    asked_at: float
    jobs: tuple[str, ...] = ()
    instance_id: str = ""
    tries: int = 0
    joined_at: float = 0.0
    missing_since: float = 0.0
    strikes: int = 0
    fault: Fault | None = None
    message: str = ""
    request_id: str = ""
    silent_since: float = 0.0
    ended_at: float = 0.0
    bad_host: str = ""


@dataclass(frozen=True, slots=True)
class GangHistory:
    """The tries of the jobs that start together (by the leader's id).

    Args:
        attempts: how often the gang was rolled back. `not_before`: when the next try is.
        first_failure: when a launch of the present try first failed; 0 if none did.
        message: the words on the job. `seen_at`: when this record was last written.
        admitted_at: when the gang was admitted; 0 if it was not, or was rolled back since. `restarts`: how often its
            jobs had been requeued then: nodes that Slurm gives them after another requeue are not admitted.
        refused_at: when its nodes were last given up. `refusals`: how often in a row it was not admitted.
        held: its jobs are held until a user or an administrator releases them.
    """

    id: str
    attempts: int = 0
    not_before: float = 0.0
    first_failure: float = 0.0
    message: str = ""
    seen_at: float = 0.0
    admitted_at: float = 0.0
    refused_at: float = 0.0
    refusals: int = 0
    held: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A pool (in its availability domain) in which nothing is launched for a while.

    Args:
        failures: how many in a row; each makes the cool-down longer.
        since: when it began.
        probing: the time is over, and the launches of one gang are let through to see whether the fault is gone.
    """

    pool: str
    until: float
    fault: Fault
    message: str
    failures: int = 1
    probing: bool = False
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What must outlive the process.

    Args:
        id: of the ledger; part of each launch token, so that the tokens of a new ledger differ from those of the old.
        claims: by node. `gangs`: by the leader's job id. `cool_downs`: by pool.
        launched_at: times of the launches of the last hour.
        boot_failures: by pool, nodes in a row that did not register. `boot_causes`: by pool, the last of their causes
            that is known.
        orphans_seen: by instance, since when it has no node, or when it was last asked to be terminated.
        healed_at: by node, when the autoscaler last made a node usable again that Slurm had given up.
        generations: by node, the last one that was ever intended. OCI refuses a used token for a day after its
            instance is gone (409 InvalidatedRetryToken), so the numbers must outlive the claim.
        node_count: how many nodes Slurm last listed, to notice a listing that is cut short.
        paused: why nothing is done; empty if the autoscaler is not paused.
        resumed_at: when an operator last let it continue: cool-downs and delays of before are over.
    """

    id: str
    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    gangs: Mapping[str, GangHistory] = field(default_factory=dict)
    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    launched_at: tuple[float, ...] = ()
    boot_failures: Mapping[str, int] = field(default_factory=dict)
    boot_causes: Mapping[str, str] = field(default_factory=dict)
    orphans_seen: Mapping[str, float] = field(default_factory=dict)
    healed_at: Mapping[str, float] = field(default_factory=dict)
    node_count: int = 0
    paused: str = ""
    generations: Mapping[str, int] = field(default_factory=dict)
    resumed_at: float = 0.0

    def token(self, node: str, generation: int) -> str:
        """The opc-retry-token of one launch: always the same for the same launch (at most 64 characters)."""
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
        unless_wanted: ask Slurm once more before, and keep the instance if a job or an administrator wants the node.
        bad_host: what shows that the physical host is bad, which is reported to Oracle before; empty if nothing does.
    """

    instance_id: str
    node: str
    pool: str
    why: str
    unless_wanted: bool = True
    bad_host: str = ""


@dataclass(frozen=True, slots=True)
class PowerDown:
    """Give nodes up: Slurm can power them up again afterwards.

    Args:
        force: at once, and Slurm requeues their jobs (`power_down_force`); else a job that has got a node keeps it
            (`power_down`).
    """

    nodes: tuple[str, ...]
    why: str
    force: bool = True


@dataclass(frozen=True, slots=True)
class MarkDown:
    """Take nodes out of service, with the reason that `sinfo -R` shows."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class DrainNodes:
    """Let nodes finish their jobs and take no new ones."""

    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Delay:
    """Give a job a later start time and an annotation."""

    job: str
    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold a job until a user or an administrator releases it, with an annotation."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write an explanation for the user on a job."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """Request the configuration of a new instance, in a pool without a baked image."""

    node: str
    pool: str
    instance_id: str
    why: str


@dataclass(frozen=True, slots=True)
class SaveConsole:
    """Save the console output of an instance that did not become a node."""

    instance_id: str
    node: str
    why: str


SlurmAction = PowerDown | MarkDown | DrainNodes | Delay | Hold | Annotate
Action = Launch | Terminate | Join | SaveConsole | SlurmAction


@dataclass(frozen=True, slots=True)
class Note:
    """A decision about a node, job, instance or pool that `explain` shows, also where nothing is done."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """What is to be done, what is to be written to the ledger before it is done, and why.

    The actions of one plan are carried out in their order; all but the launches are done before the next pass.
    """

    actions: tuple[Action, ...]
    memory: Memory
    notes: tuple[Note, ...] = ()
