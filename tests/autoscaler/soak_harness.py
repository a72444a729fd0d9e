"""A simulated cluster with checked invariants: what must hold at any time, whatever fails.

Doubles: Slurm, the cloud and the executor are the models of `gpucluster.autoscaler.simulation`; `plan.decide` is real.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from gpucluster.autoscaler.decide.types import Terminate
from gpucluster.autoscaler.policy import Authentication, Policy, PolicyLimits, PoolPolicy
from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates, ModelInstance
from gpucluster.autoscaler.simulation.engine import SimulatedCluster
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, Power, SlurmSettings

TWIN = "-twin"


def policy(*pools: PoolPolicy, **limits: float) -> Policy:
    return Policy(
        cluster="soak",
        compartment_id="compartment",
        region="region",
        authentication=Authentication("instance_principal"),
        pools={entry.name: entry for entry in pools},
        limits=PolicyLimits(**limits),  # type: ignore[arg-type]
        prices={"shape": 10.0},
    )


def pool(name: str, max_nodes: int, *, partition: str = "", baked: bool = True, names: int = 0) -> PoolPolicy:
    return PoolPolicy(
        name=name,
        partition=partition or name,
        prefix=f"{name}-e",
        names=names or 2 * max_nodes + 2,
        max_nodes=max_nodes,
        shape="shape",
        availability_domain=f"AD-{name}",
        instance_configuration_id=f"configuration-{name}",
        compute_cluster_id=f"compute-cluster-{name}",
        baked=baked,
    )


class Watch:
    """A simulated cluster whose invariants are checked after every pass.

    Args:
        grace: seconds for which an instance may be without a claim, beyond the times without an observation.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int,
        rates: FaultRates,
        slurm: SlurmSettings,
        cloud: CloudSettings | None = None,
        grace: float = 900.0,
    ) -> None:
        self.policy = policy
        self.world = SimulatedCluster(
            policy,
            slurm,
            replace(cloud or CloudSettings(), names_are_unique=False),
            rates,
            seed=seed,
            start=1_000_000.0,
            longest_pause=30.0,
            keep_notes=True,
        )
        self.grace = grace
        self.blind_until = 0.0  # no observation was possible before
        self.random = random.Random(seed)
        self.jobs: list[ModelJob] = []
        self.ended: list[ModelJob] = []
        self.passes = 0
        self._unslotted: dict[str, float] = {}
        self._idle: dict[tuple[str, int], float] = {}
        self._ever: set[str] = set()
        self.world.after_pass = self.check
        self.world.slurm.ended = self.ended.append
        self._terminate = self.world.cloud.terminate
        self.world.cloud.terminate = self._checked_terminate  # type: ignore[method-assign]

    # --- actions of operators -----

    def submit(self, nodes: int, seconds: float, partition: str) -> ModelJob:
        job = ModelJob(
            number=len(self.jobs) + 1,
            node_count=nodes,
            run_seconds=seconds,
            limit=seconds * 2,
            partition=partition,
            submitted_at=self.world.clock.now,
        )
        assert self.world.slurm.submit(job), "the soak asks for nothing impossible"
        self.jobs.append(job)
        return job

    def blind(self, seconds: float, *, slurm: bool = False, cloud: bool = False) -> None:
        """Slurm or the cloud can't be asked for a while."""
        world = self.world
        world.slurm_offline, world.cloud_offline = world.slurm_offline or slurm, world.cloud_offline or cloud
        self.blind_until = max(self.blind_until, world.clock.now + seconds)

        def back() -> None:
            if world.clock.now >= self.blind_until:
                world.slurm_offline = world.cloud_offline = False

        world.clock.after(seconds, back)
        world.wake()

    def people_help(self) -> None:
        """An operator releases held jobs, and resumes nodes that are drained or down."""
        for job in list(self.world.slurm.jobs.values()):
            self.world.slurm.release(job.number)
        for node in self.world.slurm.nodes.values():
            if node.drained:
                self.world.slurm.undrain(node.name)
            if node.down and node.reason_user == "alice":
                self.world.slurm.power_down_force([node.name])

    def about(self, instance_id: str) -> str:
        """What is known about an instance and its node, for the message of a failure."""
        world, instance = self.world, self.world.cloud.instances[instance_id]
        node = world.slurm.node_views.get(instance.node)
        job = world.slurm.nodes[instance.node].job if node else None
        listed = world.cloud.listing.get(instance_id)
        notes = [note.text for name, note in (world.notes or {}).items() if name in (instance.node, instance_id)]
        ends = [(action.why, action.instance_id) for action in world.terminated if action.node == instance.node]
        return "\n  ".join(
            map(str, (instance, listed, node, job, world.memory.claims.get(instance.node), notes, ends[-3:]))
        )

    # --- invariants -----

    def check(self) -> None:
        self.passes += 1
        cloud = self.world.cloud
        billed = [instance for instance in cloud.alive.values() if instance.billed]
        self._ever.update(cloud.alive)
        self._caps(billed)
        self._one_each(billed)
        now = self.world.clock.now
        if now < self.blind_until + 120:
            self._unslotted.clear()
            self._idle.clear()
            return
        self._owned(billed, now)
        self._no_waste(billed, now)

    def _caps(self, billed: list[ModelInstance]) -> None:
        ours = [instance.pool for instance in billed if not instance.token.endswith(TWIN)]
        for name, count in Counter(ours).items():
            most = self.policy.pools[name].max_nodes
            assert count <= most, f"(a) {name}: {count} instances, {most} allowed"
        limits = self.policy.limits
        assert limits.max_nodes is None or len(ours) <= limits.max_nodes, f"(a) {len(ours)} instances"
        if limits.max_cost_per_hour is not None:
            assert len(ours) * 10.0 <= limits.max_cost_per_hour, f"(a) {len(ours)} instances cost too much"
        hour = self.world.clock.now - 3600
        if limits.max_launches_per_hour is not None:
            young = [one for one in cloud_born(self.world) if one > hour]
            assert len(young) <= limits.max_launches_per_hour, f"(a) {len(young)} launches in an hour"

    def _one_each(self, billed: list[ModelInstance]) -> None:
        names = [instance.node for instance in billed if not instance.token.endswith(TWIN)]
        assert len(names) == len(set(names)), f"(b) two instances for {sorted(n for n in names if names.count(n) > 1)}"
        claims = [claim.instance_id for claim in self.world.memory.claims.values() if claim.instance_id]
        assert len(claims) == len(set(claims)), "(b) an instance in two claims"

    def _owned(self, billed: list[ModelInstance], now: float) -> None:
        """(c) Every instance that costs money has a claim, or ends soon."""
        slotted = {claim.instance_id for claim in self.world.memory.claims.values()}
        without = {instance.id for instance in billed} - slotted
        self._unslotted = {one: self._unslotted.get(one, now) for one in without}
        for one, since in self._unslotted.items():
            assert now - since <= self.grace, f"(c) {one} without a claim for {now - since:.0f} s: {self.about(one)}"

    def _no_waste(self, billed: list[ModelInstance], now: float) -> None:
        """(e) Every instance that costs money works, boots or is ending."""
        slurm = self.world.slurm
        useless: set[tuple[str, int]] = set()
        for instance in billed:
            node = slurm.nodes.get(instance.node)
            if node is not None and node.job is not None and node.instance_id == instance.id and node.power is Power.ON:
                continue
            if node is None or node.power is not Power.UP:
                useless.add((instance.id, node.idle_epoch if node is not None else 0))  # a new number with each job
        self._idle = {one: self._idle.get(one, now) for one in useless}
        most = slurm.settings.idle_timeout + self.grace
        for (one, _), since in self._idle.items():
            assert now - since <= most, f"(e) {one} did nothing for {now - since:.0f} s: {self.about(one)}"

    def _checked_terminate(self, instance_id: str) -> None:
        """No foreign instance is ever terminated, and no node under a running job."""
        instance = self.world.cloud.alive.get(instance_id)
        assert instance is not None or instance_id in self._ever, f"{instance_id} is not ours"
        if instance is not None and instance.state == "RUNNING":
            node = self.world.slurm.nodes.get(instance.node)
            serves = node is not None and node.instance_id == instance_id and node.power is Power.ON and not node.down
            job = node.job if node is not None else None
            if serves and job is not None and job.state == "RUNNING":
                raise AssertionError(f"{instance_id} was ended under job {job.id} on {instance.node}")
        self._terminate(instance_id)


def cloud_born(world: SimulatedCluster) -> list[float]:
    """When each instance that the cloud lists was created, without those that a fault created."""
    return [one.created_at for one in world.cloud.instances.values() if not one.token.endswith(TWIN)]


def events(watch: Watch) -> str:
    """The history that explains a failure."""
    ends = [action for action in watch.world.terminated if isinstance(action, Terminate)]
    return f"{watch.passes} passes, {len(ends)} terminations, faults {watch.world.cloud.faults}"
