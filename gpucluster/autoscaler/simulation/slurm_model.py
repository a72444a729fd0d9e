"""A model of slurmctld, for power saving only.

It does what was measured with Slurm 22.05.8 and 24.11.5: a job is given all its node names at once, powered down or
not, and is CONFIGURING until the last of them has registered; a node that doesn't register within ResumeTimeout becomes
DOWN+POWERED_DOWN, its job is requeued, and Slurm never heals the node; one node that goes down requeues the whole job
while the job's other nodes keep booting; a requeued job waits cred_expire + 1 seconds; `power_down_force` works from
every state; a node that is powering down takes no job until SuspendTimeout has passed; cancelling a job stops no boot.

What it does not prove: it has whole nodes only (no cores, memory, GRES or features) and one scheduler that is FIFO by
priority with a backfill that keeps one reservation. It has no fair share, reservations, licences, arrays or preemption.
Commands take effect at once; a real slurmctld needs milliseconds to seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from gpucluster.autoscaler.decide.types import Intent, Job, Node
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.slurm.states import JobState, NodeState


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Settings of slurm.conf, in seconds.

    Args:
        requeue_delay: cred_expire + 1.
        hook_delay: from an allocation to ResumeProgram (measured: 1.5 to 3.9).
        max_powered_nodes: None stands for Slurm before 24.05, which has no such limit.
        silent_after: from the loss of a slurmd to NOT_RESPONDING; `slurmd_timeout`: to DOWN.
        backfill_depth: how many waiting jobs one scheduler pass considers.
    """

    idle_timeout: float = 600.0
    resume_timeout: float = 1800.0
    suspend_timeout: float = 120.0
    requeue_delay: float = 31.0
    hook_delay: float = 2.0
    scheduler_delay: float = 1.0
    silent_after: float = 100.0
    slurmd_timeout: float = 300.0
    max_powered_nodes: int | None = None
    backfill_depth: int = 100


class Power(StrEnum):
    """What a node does, as far as power goes."""

    DOWN = "down"  # powered down
    UP = "up"  # powering up
    ON = "on"
    OFF = "off"  # powering down


_POWER_FLAGS = {
    Power.DOWN: NodeState.POWERED_DOWN,
    Power.UP: NodeState.POWERING_UP,
    Power.OFF: NodeState.POWERING_DOWN,
}


@dataclass(slots=True, eq=False)
class ModelJob:
    """A job. `run_seconds` is how long it runs, `limit` the time limit that it asked for.

    States: PENDING, CONFIGURING, RUNNING, and at the end COMPLETED or CANCELLED.
    """

    number: int
    node_count: int
    run_seconds: float
    limit: float
    partition: str
    submitted_at: float
    user: str = ""
    state: JobState = JobState.PENDING
    reason: str = "Priority"
    held: bool = False
    eligible_at: float = 0.0
    nodes: list[ModelNode] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    restarts: int = 0
    comment: str = ""
    priority: int = 1000
    started_at: float = 0.0
    ended_at: float = 0.0
    epoch: int = 0
    expected_end: float = 0.0
    queued: bool = False

    @property
    def id(self) -> str:
        """The job id."""
        return str(self.number)

    @property
    def key(self) -> tuple[int, int]:
        """Its position in the queue."""
        return (-self.priority, self.number)

    @property
    def has_ended(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in (JobState.COMPLETED, JobState.CANCELLED)


@dataclass(slots=True, eq=False)
class ModelNode:
    """A node."""

    name: str
    number: int
    pool: ModelPool
    power: Power = Power.DOWN
    down: bool = False
    drained: bool = False
    silent: bool = False
    reason: str = ""
    reason_user: str = ""
    job: ModelJob | None = None
    instance_id: str = ""
    epoch: int = 0
    idle_epoch: int = 0
    bucket: str = ""

    def view(self) -> Node:
        """The node as `scontrol show nodes` prints it."""
        allocated = self.job is not None and not self.down
        flags = _flags(self.power, self.down, self.drained, self.silent, allocated)
        return Node(self.name, self.pool.name, flags, self.reason, self.reason_user, self.instance_id)


@cache
def _flags(power: Power, down: bool, drained: bool, silent: bool, allocated: bool) -> frozenset[str]:
    flags = {
        NodeState.CLOUD,
        NodeState.DOWN if down else NodeState.ALLOCATED if allocated else NodeState.IDLE,
    }
    if power is not Power.ON:
        flags.add(_POWER_FLAGS[power])
    if drained:
        flags.add(NodeState.DRAIN)
    if silent or power is Power.UP:
        flags.add(NodeState.NOT_RESPONDING)
    return frozenset(flags)


@dataclass(slots=True, eq=False)
class ModelPool:
    """The names of one pool, and which of them can take a job: they are idle, boot without a job, or are off."""

    name: str
    partition: str
    rdma: bool
    max_nodes: int
    nodes: list[ModelNode] = field(default_factory=list)
    free: dict[str, list[int]] = field(default_factory=lambda: {"ready": [], "warming": [], "asleep": []})

    def move(self, node: ModelNode, bucket: str) -> None:
        """Put a node into a bucket of the scheduler; with an empty name the scheduler does not see it."""
        if node.bucket == bucket:
            return
        if node.bucket:
            numbers = self.free[node.bucket]
            del numbers[bisect_left(numbers, node.number)]
        if bucket:
            insort(self.free[bucket], node.number)
        node.bucket = bucket


def _bucket(node: ModelNode) -> str:
    if node.job is not None or node.down or node.drained or node.silent:
        return ""
    return {Power.ON: "ready", Power.UP: "warming", Power.DOWN: "asleep", Power.OFF: ""}[node.power]


@dataclass(slots=True, eq=False)
class _Partition:
    """A queue, and when the nodes of its jobs will be free."""

    pools: list[ModelPool]
    queue: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[float, int, int]] = field(default_factory=list)  # (expected end, job, nodes)


class SlurmModel:
    """slurmctld, its nodes and its jobs.

    Args:
        hook: ResumeProgram, SuspendProgram and ResumeFailProgram.
        changed: called for every node that changed; ended: for every job that ended.
    """

    def __init__(self, clock: Clock, settings: SlurmSettings, hook: Callable[[Intent], None]) -> None:
        self.clock = clock
        self.settings = settings
        self.hook = hook
        self.changed: Callable[[ModelNode], None] = lambda node: None
        self.ended: Callable[[ModelJob], None] = lambda job: None
        self.nodes: dict[str, ModelNode] = {}
        self.jobs: dict[int, ModelJob] = {}
        self.node_views: dict[str, Node] = {}
        self.job_views: dict[str, Job] = {}
        self.powered = 0
        self.requeues = 0
        self._pools: dict[str, ModelPool] = {}
        self._partitions: dict[str, _Partition] = {}
        self._scheduled: set[str] = set()
        self._resumed: list[ModelNode] = []

    # --- set up -----

    def add_pool(self, name: str, partition: str, names: Sequence[str], *, rdma: bool, max_nodes: int) -> None:
        """Add a pool with its names, all powered down."""
        pool = ModelPool(name, partition, rdma, max_nodes)
        self._pools[name] = pool
        self._partitions.setdefault(partition, _Partition([])).pools.append(pool)
        for number, node_name in enumerate(names):
            node = ModelNode(node_name, number, pool)
            pool.nodes.append(node)
            self.nodes[node_name] = node
            self._update(node)

    @property
    def partitions(self) -> Iterable[str]:
        """Their names, the default one first."""
        return self._partitions

    # --- what users do -----

    def submit(self, job: ModelJob) -> bool:
        """Submit a job; False if no pool can ever run it (EnforcePartLimits, MaxNodes)."""
        pools = self._partitions[job.partition].pools
        sizes = [pool.max_nodes for pool in pools]
        most = max(sizes) if any(pool.rdma for pool in pools) else sum(sizes)
        if not 0 < job.node_count <= most:
            return False
        self.jobs[job.number] = job
        self._enqueue(job)
        return True

    def cancel(self, number: int) -> None:
        """`scancel`. Nodes that boot for the job go on booting."""
        job = self.jobs.get(number)
        if job is not None:
            self._leave(job, JobState.CANCELLED)

    def hold(self, number: int, reason: str = "JobHeldUser") -> None:
        """`scontrol hold`: a pending job does not start until it is released."""
        job = self.jobs.get(number)
        if job is not None and job.state == JobState.PENDING:
            job.held, job.reason = True, reason
            self._dequeue(job)
            self._show(job)

    def release(self, number: int) -> None:
        """`scontrol release`."""
        job = self.jobs.get(number)
        if job is not None and job.held:
            job.held = False
            self._enqueue(job)

    # --- what administrators and the autoscaler do -----

    def power_up(self, name: str) -> None:
        """`scontrol power up` of a node without a job."""
        node = self.nodes[name]
        if node.power is Power.DOWN and not node.down and not self._capped(1):
            self._power_up(node)

    def power_down_force(self, names: Iterable[str]) -> None:
        """`state=power_down_force`: from any state; jobs are requeued."""
        given_up = []
        for name in names:
            node = self.nodes.get(name)
            if node is None or node.power is Power.OFF or (node.power is Power.DOWN and not node.down):
                continue
            self._requeue_job_of(node)
            given_up.append(node)
        self._power_down(given_up, delay=1.0)

    def mark_down(self, name: str, reason: str, user: str = "root") -> None:
        """`state=down`: the whole job is requeued at once; its other nodes keep their state."""
        node = self.nodes.get(name)
        if node is not None:
            self._go_down(node, reason, user)

    def drain(self, name: str, reason: str, user: str = "root") -> None:
        """`state=drain`."""
        node = self.nodes.get(name)
        if node is not None:
            node.drained, node.reason, node.reason_user = True, reason, user
            self._update(node)

    def undrain(self, name: str) -> None:
        """`state=undrain`."""
        node = self.nodes[name]
        node.drained, node.reason, node.reason_user = False, "", ""
        self._update(node)

    def delay(self, number: int, until: float, words: str) -> None:
        """`starttime=` of a pending job. Slurm refuses it for a job that has nodes."""
        job = self.jobs.get(number)
        if job is None or job.state != JobState.PENDING:
            return
        job.comment, job.eligible_at = words, until
        self._dequeue(job)
        self._enqueue(job)
        self._show(job)

    def annotate(self, number: int, words: str) -> None:
        """`admincomment=`."""
        job = self.jobs.get(number)
        if job is not None:
            job.comment = words
            self._show(job)

    # --- what slurmd does -----

    def register(self, name: str, instance_id: str) -> bool:
        """A slurmd registers; False if Slurm does not accept it (an old boot, a node given up)."""
        node = self.nodes.get(name)
        if node is None or node.power is Power.OFF or (node.power is Power.DOWN and not node.down):
            return False
        if node.power is Power.ON and node.instance_id != instance_id:
            self._requeue_job_of(node)  # "Node unexpectedly rebooted"
        node.power, node.down, node.silent = Power.ON, False, False
        node.instance_id = instance_id
        if not node.drained:
            node.reason = node.reason_user = ""
        node.epoch += 1
        self._update(node)
        self._idle_from_now(node)
        self._arrived(node)
        self._schedule_soon(node.pool.partition)
        return True

    def lost(self, name: str, instance_id: str) -> None:
        """A slurmd stops answering, and what ran on it is lost."""
        node = self.nodes.get(name)
        if node is None or node.instance_id != instance_id or node.power is not Power.ON:
            return
        if node.job is not None:
            node.job.epoch += 1  # it never ends normally
        epoch = node.epoch

        def silent() -> None:
            if node.epoch == epoch and node.power is Power.ON:
                node.silent = True
                self._update(node)

        def down() -> None:
            if node.epoch == epoch and node.power is Power.ON:
                self._go_down(node, "Not responding", "slurm")

        self.clock.after(self.settings.silent_after, silent)
        self.clock.after(self.settings.slurmd_timeout, down)

    # --- jobs -----

    def _enqueue(self, job: ModelJob) -> None:
        if job.held or job.state != JobState.PENDING:
            return
        if job.eligible_at > self.clock.now:
            epoch = job.epoch
            job.reason = "BeginTime"
            self.clock.at(job.eligible_at, lambda: self._enqueue(job) if job.epoch == epoch else None)
        elif not job.queued:
            job.queued, job.reason = True, "Resources"
            insort(self._partitions[job.partition].queue, job.key)
            self._schedule_soon(job.partition)
        self._show(job)

    def _dequeue(self, job: ModelJob) -> None:
        job.epoch += 1
        if job.queued:
            queue = self._partitions[job.partition].queue
            del queue[bisect_left(queue, job.key)]
            job.queued = False

    def _show(self, job: ModelJob) -> None:
        if job.has_ended:
            self.job_views.pop(job.id, None)
            return
        self.job_views[job.id] = Job(
            id=job.id,
            gang=job.id,
            state=job.state,
            reason=job.reason if job.state == JobState.PENDING else "None",
            partitions=(job.partition,),
            nodes=tuple(node.name for node in job.nodes),
            node_count=job.node_count,
            priority=job.priority,
            restarts=job.restarts,
            eligible_at=max(job.eligible_at, job.submitted_at),
            user=job.user,
            comment=job.comment,
        )

    def _start(self, job: ModelJob) -> None:
        job.state = JobState.RUNNING
        job.started_at = self.clock.now
        job.epoch += 1
        epoch = job.epoch
        self._expect(job, self.clock.now + job.limit)
        self._show(job)
        for node in job.nodes:
            self._update(node)
        self.clock.after(job.run_seconds, lambda: self._leave(job, JobState.COMPLETED) if job.epoch == epoch else None)

    def _expect(self, job: ModelJob, end: float) -> None:
        ends = self._partitions[job.partition].ends
        if job.expected_end:
            del ends[bisect_left(ends, (job.expected_end, job.number, 0))]
        job.expected_end = end
        if end:
            insort(ends, (end, job.number, job.node_count))

    def _leave(self, job: ModelJob, state: JobState) -> None:
        """A job ends, successfully or not."""
        if job.has_ended:
            return
        self._give_back(job)
        job.state = state
        job.ended_at = self.clock.now
        self.jobs.pop(job.number, None)
        self._show(job)
        self.ended(job)

    def _give_back(self, job: ModelJob) -> None:
        self._dequeue(job)
        self._expect(job, 0.0)
        nodes, job.nodes = job.nodes, []
        job.missing = set()
        for node in nodes:
            node.job = None
            self._update(node)
            self._idle_from_now(node)
        if nodes:
            self._schedule_soon(job.partition)

    def _requeue_job_of(self, node: ModelNode) -> None:
        job = node.job
        if job is None:
            return
        self._give_back(job)
        job.state = JobState.PENDING
        job.restarts += 1
        self.requeues += 1
        job.eligible_at = self.clock.now + self.settings.requeue_delay
        self._enqueue(job)

    # --- nodes -----

    def _update(self, node: ModelNode) -> None:
        """After every change of a node: its bucket, its view, and the call of `changed`."""
        node.pool.move(node, _bucket(node))
        self.node_views[node.name] = node.view()
        self.changed(node)

    def _arrived(self, node: ModelNode) -> None:
        job = node.job
        if job is None or node.name not in job.missing:
            return
        job.missing.discard(node.name)
        if not job.missing:
            self._start(job)

    def _go_down(self, node: ModelNode, reason: str, user: str) -> None:
        self._requeue_job_of(node)
        node.down, node.reason, node.reason_user = True, reason, user
        self._update(node)
        self._idle_from_now(node)

    def _power_up(self, node: ModelNode) -> None:
        node.power = Power.UP
        node.instance_id = ""
        node.epoch += 1
        epoch = node.epoch
        self.powered += 1
        self._resumed.append(node)
        if len(self._resumed) == 1:
            self.clock.after(self.settings.hook_delay, self._call_resume)
        self.clock.after(self.settings.resume_timeout, lambda: self._expired(node) if node.epoch == epoch else None)
        self._update(node)

    def _call_resume(self) -> None:
        """One ResumeProgram for all nodes of all jobs of a pass."""
        nodes, self._resumed = self._resumed, []
        jobs: dict[str, list[str]] = {}
        for node in nodes:
            if node.job is not None:
                jobs.setdefault(node.job.id, []).append(node.name)
        grouped: Mapping[str, tuple[str, ...]] = {job: tuple(names) for job, names in jobs.items()}
        self.hook(Intent("resume", self.clock.now, tuple(node.name for node in nodes), grouped))

    def _expired(self, node: ModelNode) -> None:
        """ResumeTimeout: ResumeFailProgram is called, SuspendProgram is not, and nothing heals the node."""
        self._requeue_job_of(node)
        node.power, node.down, node.drained, node.silent = Power.DOWN, True, False, True
        node.reason, node.reason_user = "ResumeTimeout reached", "slurm"
        node.epoch += 1
        self.powered -= 1
        self._update(node)
        self.hook(Intent("resume_fail", self.clock.now, (node.name,)))

    def _power_down(self, nodes: list[ModelNode], *, delay: float) -> None:
        """Power nodes down: call the hook, and make the names usable again after SuspendTimeout."""
        if not nodes:
            return
        for node in nodes:
            if node.power in (Power.UP, Power.ON):
                self.powered -= 1
            node.power, node.down, node.silent = Power.OFF, False, False
            node.reason = node.reason if node.drained else ""
            node.epoch += 1
            self._update(node)
        names = tuple(node.name for node in nodes)
        self.clock.after(delay, lambda: self.hook(Intent("suspend", self.clock.now, names)))
        self.clock.after(self.settings.suspend_timeout, lambda: self._powered_down(nodes))

    def _powered_down(self, nodes: list[ModelNode]) -> None:
        for node in nodes:
            node.power, node.instance_id = Power.DOWN, ""
            node.epoch += 1
            self._update(node)
        for partition in {node.pool.partition for node in nodes}:
            self._schedule_soon(partition)

    def _idle_from_now(self, node: ModelNode) -> None:
        """Start SuspendTime of a node without a job."""
        node.idle_epoch += 1
        if node.power is not Power.ON or node.job is not None:
            return
        epoch = node.idle_epoch
        self.clock.after(
            self.settings.idle_timeout, lambda: self._idle_long(node) if node.idle_epoch == epoch else None
        )

    def _idle_long(self, node: ModelNode) -> None:
        if node.power is Power.ON and node.job is None:
            self._power_down([node], delay=1.0)

    # --- the scheduler -----

    def _schedule_soon(self, partition: str) -> None:
        if partition not in self._scheduled and self._partitions[partition].queue:
            self._scheduled.add(partition)
            self.clock.after(self.settings.scheduler_delay, lambda: self._schedule(partition))

    def _schedule(self, name: str) -> None:
        """FIFO by priority. Behind the first job that must wait, jobs start that do not delay it."""
        self._scheduled.discard(name)
        partition = self._partitions[name]
        shadow, spare = float("inf"), 0
        blocked = False
        for key in partition.queue[: self.settings.backfill_depth]:
            job = self.jobs[key[1]]
            in_time = self.clock.now + job.limit <= shadow
            if blocked and not in_time and job.node_count > spare:
                continue
            nodes = self._find(partition, job.node_count)
            if nodes:
                self._allocate(job, nodes)
                spare -= 0 if in_time else job.node_count
            elif not blocked:
                blocked = True
                shadow, spare = self._reserve(partition, job.node_count)
                if not self._free(partition):
                    return

    def _capped(self, more: int) -> bool:
        cap = self.settings.max_powered_nodes
        return cap is not None and self.powered + more > cap

    def _free(self, partition: _Partition) -> int:
        return sum(len(numbers) for pool in partition.pools for numbers in pool.free.values())

    def _find(self, partition: _Partition, count: int) -> list[ModelNode]:
        """Nodes for a job: nodes that are on before nodes that are off; from one pool where RDMA requires it."""
        single = [[pool] for pool in partition.pools]
        for pools in [*single, *([partition.pools] if not any(pool.rdma for pool in partition.pools) else [])]:
            chosen: list[ModelNode] = []
            for bucket in ("ready", "warming", "asleep"):
                for pool in pools:
                    chosen += [pool.nodes[number] for number in pool.free[bucket][: count - len(chosen)]]
            asleep = sum(node.power is Power.DOWN for node in chosen)
            if len(chosen) == count and not (asleep and self._capped(asleep)):
                return chosen
        return []

    def _reserve(self, partition: _Partition, count: int) -> tuple[float, int]:
        """When enough nodes will be free for the first waiting job, and how many will be left over then."""
        free = self._free(partition)
        if self.settings.max_powered_nodes is not None:
            powered = sum(len(pool.free[bucket]) for pool in partition.pools for bucket in ("ready", "warming"))
            free = min(free, powered + max(self.settings.max_powered_nodes - self.powered, 0))
        shadow = float("inf")
        for end, _, nodes in partition.ends:
            if free >= count:
                break
            free += nodes
            shadow = end
        return (shadow, free - count) if free >= count else (float("inf"), 0)

    def _allocate(self, job: ModelJob, nodes: list[ModelNode]) -> None:
        self._dequeue(job)
        job.nodes = nodes
        job.missing = {node.name for node in nodes if node.power is not Power.ON}
        job.state = JobState.CONFIGURING
        self._expect(job, self.clock.now + job.limit)
        for node in nodes:
            node.job = job
            node.idle_epoch += 1
            if node.power is Power.DOWN:
                self._power_up(node)
            else:
                self._update(node)
        if job.missing:
            self._show(job)
        else:
            self._start(job)
