"""The daemon's loop on the virtual clock: observe, decide (the real function), remember, act.

Time passes from event to event. A pass runs when a hook or an outcome wakes the daemon, and every `tick` while there is
something to do. After passes without work the pause grows, up to a minute; while nothing changes there is no pass at
all. The real daemon runs a pass every tick: it reacts up to a minute earlier to what no hook reports (a lost instance,
a deadline).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpucluster.autoscaler.decide import plan
from gpucluster.autoscaler.decide.types import (
    Action,
    Annotate,
    ClaimState,
    CloudInstance,
    Delay,
    DrainNodes,
    Fault,
    Hold,
    Intent,
    Join,
    Launch,
    MarkDown,
    Memory,
    Note,
    Observation,
    Outcome,
    PowerDown,
    Terminate,
)
from gpucluster.autoscaler.policy import Policy
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.cloud_model import CloudModel, CloudSettings, FaultRates, ModelInstance
from gpucluster.autoscaler.simulation.executor_model import ExecutorModel
from gpucluster.autoscaler.simulation.slurm_model import ModelNode, Power, SlurmModel, SlurmSettings
from gpucluster.slurm.states import JobState, power_requested


@dataclass(slots=True)
class _Inbox:
    """What has arrived since the last pass."""

    intents: list[Intent] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    join_failed: dict[str, str] = field(default_factory=dict)


class SimulatedCluster:
    """Slurm, the cloud and the daemon, on one clock.

    Args:
        act_seconds: from an observation to the actions that follow from it; time passes meanwhile.
        longest_pause: between two passes while something is not in its final state.
        keep_notes: keep the last note of `decide` about each subject.
    """

    def __init__(
        self,
        policy: Policy,
        slurm: SlurmSettings,
        cloud: CloudSettings,
        rates: FaultRates,
        *,
        seed: int = 0,
        start: float = 0.0,
        act_seconds: float = 0.2,
        longest_pause: float = 60.0,
        keep_notes: bool = False,
    ) -> None:
        self.policy = policy
        self.clock = Clock(start)
        self.slurm = SlurmModel(self.clock, slurm, self._hook)
        joins = frozenset(pool.name for pool in policy.pools.values() if not pool.baked)
        self.cloud = CloudModel(self.clock, cloud, rates, seed, joins=joins)
        self.executor = ExecutorModel(self.clock, self.cloud, self._is_needed, self.wake)
        self.memory = Memory(id=f"simulation-{seed}")
        self.slurm_offline = self.cloud_offline = False
        self.passes = 0
        self.terminated: list[Terminate] = []
        self.notes: dict[str, Note] | None = {} if keep_notes else None
        self.after_pass: Callable[[], None] = lambda: None
        self._act_seconds = act_seconds
        self._longest_pause = max(longest_pause, policy.times.tick)
        self._inbox = _Inbox()
        self._joining: set[str] = set()
        self._pause = policy.times.tick
        self._next_pass = float("inf")
        self._last_pass = float("-inf")
        self._pass_number = 0
        self._process = 0
        self.slurm.changed = self._node_changed
        self.cloud.changed = self._something_changed
        self.cloud.register = self.slurm.register
        self.cloud.lost = self.slurm.lost
        self.cloud.failed_late = self._failed_late
        for pool in policy.pools.values():
            names = [f"{pool.prefix}{number}" for number in range(1, pool.names + 1)]
            rdma = pool.compute_cluster_id is not None
            self.slurm.add_pool(pool.name, pool.partition, names, rdma=rdma, max_nodes=pool.max_nodes)

    # --- the daemon -----

    def wake(self) -> None:
        """Run a pass as soon as the last one is a busy tick ago."""
        self._schedule_pass(max(self.clock.now, self._last_pass + self.policy.times.busy_tick))

    def crash(self) -> None:
        """Kill the daemon and start it again: it has what it had committed, and nothing else."""
        self._process += 1
        self.executor.crash()
        self._inbox = _Inbox()
        self._joining.clear()
        self._next_pass = float("inf")
        self.wake()

    @property
    def unsettled(self) -> bool:
        """Whether something is changing, or is not in its final state."""
        memory = self.memory
        if self.executor.in_flight or memory.cool_downs or self.slurm_offline or self.cloud_offline:
            return True
        claims = memory.claims
        if len(self.cloud.alive) != len(claims) or len(self.cloud.listing) != len(claims):
            return True
        steady = 0
        for name, node in self.slurm.nodes.items():
            if node.power is Power.ON and not node.down and not node.silent:
                claim = claims.get(name)
                if claim is None or claim.state != ClaimState.UP or claim.instance_id != node.instance_id:
                    return True
                steady += 1
            elif node.power is not Power.DOWN or node.down:
                return True
        return steady != len(claims)

    def reconcile(self) -> None:
        """One pass of the loop; its actions are carried out later."""
        self.passes += 1
        self._pass_number += 1
        self._last_pass, self._next_pass = self.clock.now, float("inf")
        decided = plan.decide(self._observe(), self.memory, self.policy, self.clock.now)
        self.memory = decided.memory
        if self.notes is not None:
            self.notes.update((note.subject, note) for note in decided.notes)
        busy = any(not isinstance(action, Annotate) for action in decided.actions)
        self._pause = self.policy.times.tick if busy else min(self._pause * 2, self._longest_pause)
        process = self._process
        self.clock.after(self._act_seconds, lambda: self._act(decided.actions) if process == self._process else None)

    def _observe(self) -> Observation:
        inbox, self._inbox = self._inbox, _Inbox()
        instances: tuple[CloudInstance, ...] | None = tuple(self.cloud.listing.values())
        self.executor.offline = self.cloud_offline
        return Observation(
            nodes=None if self.slurm_offline else self.slurm.node_views,
            jobs=None if self.slurm_offline else self.slurm.job_views,
            instances=None if self.cloud_offline else instances,
            outcomes=(*self.executor.take(), *inbox.outcomes),
            intents=tuple(inbox.intents),
            in_flight=frozenset(self.executor.in_flight),
            joining=frozenset(self._joining),
            join_failed=inbox.join_failed,
        )

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._carry_out(action)
        self.after_pass()
        if self.unsettled or self._pending_memory():
            self._schedule_pass(self._last_pass + self._pause)

    def _pending_memory(self) -> bool:
        return any(claim.state != ClaimState.UP for claim in self.memory.claims.values()) or any(
            gang.not_before > self.clock.now for gang in self.memory.gangs.values()
        )

    def _schedule_pass(self, when: float) -> None:
        if when >= self._next_pass:
            return
        self._next_pass = when
        number, process = self._pass_number, self._process

        def due() -> None:
            if number == self._pass_number and process == self._process and self._next_pass == when:
                self.reconcile()

        self.clock.at(when, due)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Launch):
            self.executor.submit(action)
        elif isinstance(action, Terminate):
            self._terminate(action)
        elif isinstance(action, Join):
            self._join(action)
        elif not self.slurm_offline:
            self._apply_to_slurm(action)

    def _apply_to_slurm(self, action: Action) -> None:
        match action:
            case PowerDown():
                self.slurm.power_down_force(action.nodes)
            case MarkDown():
                for node in action.nodes:
                    self.slurm.mark_down(node, action.why)
            case DrainNodes():
                for node in action.nodes:
                    self.slurm.drain(node, action.why)
            case Delay():
                self.slurm.delay(int(action.job), action.until, action.why)
            case Hold():
                self.slurm.annotate(int(action.job), action.why)
                self.slurm.hold(int(action.job), "JobHeldAdmin")
            case Annotate():
                self.slurm.annotate(int(action.job), action.why)
            case _:
                pass

    def _terminate(self, action: Terminate) -> None:
        if self.cloud_offline or (action.unless_wanted and self._wanted_again(action)):
            return
        self.terminated.append(action)
        self.cloud.terminate(action.instance_id)

    def _wanted_again(self, action: Terminate) -> bool:
        """Whether Slurm, asked again, wants the node."""
        node = self.slurm.node_views.get(action.node)
        if self.slurm_offline:
            return True
        return node is not None and power_requested(node.flags)

    def _join(self, action: Join) -> None:
        if action.instance_id in self._joining:
            return
        self._joining.add(action.instance_id)
        process = self._process

        def joined() -> None:
            self.cloud.join(action.instance_id)
            if process == self._process:
                self._joining.discard(action.instance_id)
                self.wake()

        self.clock.after(self.cloud.settings.join_seconds, joined)

    # --- events of the models -----

    def _hook(self, intent: Intent) -> None:
        self._inbox.intents.append(intent)
        self.wake()

    def _is_needed(self, node: str, token: str) -> bool:
        claim = self.memory.claims.get(node)
        return claim is not None and claim.state == ClaimState.INTENDED and claim.token == token

    def _failed_late(self, instance: ModelInstance) -> None:
        """The work request is found for every other instance that failed; for the rest there is only the listing."""
        if instance.id[-1] in "02468":
            message = "Out of host capacity (work request)"
            self._inbox.outcomes.append(
                Outcome(instance.token, instance.node, instance.id, fault=Fault.CAPACITY, message=message)
            )
        self.wake()

    def _node_changed(self, node: ModelNode) -> None:
        if node.instance_id:
            job = node.job
            category = "idle" if job is None else "busy" if job.state == JobState.RUNNING else "booting"
            self.cloud.categorize(node.instance_id, category)
        if (
            node.power is not Power.ON
            or node.down
            or node.silent
            or node.instance_id not in self._claimed_instances(node.name)
        ):
            self._something_changed()

    def _claimed_instances(self, name: str) -> tuple[str, ...]:
        claim = self.memory.claims.get(name)
        return (claim.instance_id,) if claim is not None else ()

    def _something_changed(self) -> None:
        """This does not wake the daemon: the next tick observes it."""
        self._schedule_pass(max(self.clock.now, self._last_pass + self._pause))
