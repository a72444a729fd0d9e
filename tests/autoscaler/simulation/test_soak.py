"""A day of bad luck on the virtual clock: no instance leaks, none is launched twice, and every job runs in the end.

What it proves is that `plan.decide` keeps its invariants against the models of Slurm and the cloud, doubles both.

More of it: `GPUCLUSTER_SOAK_SEEDS=50 GPUCLUSTER_SOAK_EXAMPLES=1000 pytest tests/autoscaler/simulation/test_soak.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.slurm_model import Power, SlurmSettings
from tests.autoscaler.soak_harness import TWIN, Watch, events, policy, pool

pytestmark = pytest.mark.slow

SEEDS = range(2, int(os.environ.get("GPUCLUSTER_SOAK_SEEDS", "0")))
EXAMPLES = int(os.environ.get("GPUCLUSTER_SOAK_EXAMPLES", "60"))
BAD = replace(FaultRates.every(0.02), limit=0.001, configuration=0.0005)


class People:
    """Submit, cancel, hold, drain, and lose the daemon, at random times until `until`."""

    def __init__(self, watch: Watch, until: float) -> None:
        self.watch, self.until, self.dice = watch, until, watch.random
        self.slurm = watch.world.slurm
        often = {self.submit: 45, self.cancel: 900, self.hold: 1800, self.drain: 3600, self.down: 3 * 3600}
        rarely = {watch.world.crash: 3600, self.blind: 4 * 3600, watch.people_help: 1800}
        for deed, mean in {**often, **rarely}.items():
            self._again(deed, mean)

    def _again(self, deed: Callable[[], None], mean: float) -> None:
        def act() -> None:
            if self.watch.world.clock.now < self.until:
                deed()
                self._again(deed, mean)

        self.watch.world.clock.after(self.dice.expovariate(1 / mean), act)

    def submit(self) -> None:
        size = self.dice.choice([1, 1, 1, 1, 1, 1, 2, 2, 4, 8, 16, 32])
        self.watch.submit(size, self.dice.expovariate(1 / 3000) + 20, self.dice.choice(list(self.slurm.partitions)))

    def cancel(self) -> None:
        if self.slurm.jobs:
            self.slurm.cancel(self.dice.choice(list(self.slurm.jobs)))

    def hold(self) -> None:
        if self.slurm.jobs:
            self.slurm.hold(self.dice.choice(list(self.slurm.jobs)))

    def drain(self) -> None:
        self.slurm.drain(self.dice.choice(list(self.slurm.nodes)), "a look at it", "alice")

    def down(self) -> None:
        node = self.slurm.nodes[self.dice.choice(list(self.slurm.nodes))]
        if node.power is Power.ON:
            self.slurm.mark_down(node.name, "a look at it", "alice")

    def blind(self) -> None:
        dice = self.dice
        self.watch.blind(dice.random() * 900, slurm=dice.random() < 0.5, cloud=dice.random() < 0.5)


def settle(watch: Watch, hours: int) -> None:
    """No new faults and jobs; every part helps. Every job must come to its end."""
    world = watch.world
    for _ in range(hours):
        world.cloud.rates = FaultRates()
        watch.people_help()
        world.clock.run_until(world.clock.now + 3600)
        if (
            not world.slurm.jobs
            and not any(one.billed for one in world.cloud.alive.values())
            and not world.memory.claims
        ):
            break
    left = {job.number: (job.state, job.reason, job.node_count, job.comment) for job in world.slurm.jobs.values()}
    assert not left, f"(d) jobs that never ran: {left}"
    kept = {one.id: (one.node, one.state) for one in world.cloud.alive.values() if one.billed}
    assert not kept, f"(c) instances that nobody needs: {kept}"
    assert not world.memory.claims, f"(c) claims of nothing: {world.memory.claims}"


@pytest.mark.parametrize(
    ("seed", "capped_by_slurm", "hours"),
    [(0, False, 24), (1, True, 6), *((seed, bool(seed % 2), 24) for seed in SEEDS)],
)
def test_a_day_of_bad_luck_with_500_nodes(seed: int, capped_by_slurm: bool, hours: int) -> None:
    """With max_powered_nodes (Slurm from 24.05 on) and without: then Slurm asks for more than there may be."""
    watch = Watch(
        policy(pool("a", 250), pool("b", 150), pool("c", 100, partition="b", baked=False)),
        seed=seed,
        rates=BAD,
        slurm=SlurmSettings(max_powered_nodes=500 if capped_by_slurm else None),
        cloud=CloudSettings(boot_seconds=240, listing_lag=60),
    )
    end = watch.world.clock.now + hours * 3600
    People(watch, end)
    watch.world.clock.run_until(end)
    settle(watch, 24)
    done = sum(job.state == "COMPLETED" for job in watch.ended)
    assert done > 60 * hours, events(watch)
    assert not watch.world.cloud.faults.get("name_taken"), events(watch)
    assert all(watch.world.cloud.faults.get(fault) for fault in ("capacity", "dead_boot", "lost", "unknown_done"))


def small() -> Watch:
    return Watch(
        policy(pool("a", 6), pool("b", 4, partition="a")),
        seed=0,
        rates=FaultRates(),
        slurm=SlurmSettings(idle_timeout=300),
        cloud=CloudSettings(boot_seconds=200, listing_lag=60),
    )


def test_other_nodes_for_a_requeued_job_pass_the_gates_again() -> None:
    """It was not seen waiting in between, because the cloud could not be asked: seven instances of six."""
    watch = small()
    watch.submit(4, 5, "a")
    watch.world.slurm.power_up("a-e1")
    watch.world.slurm.power_down_force(["a-e1"])
    watch.world.clock.run_until(watch.world.clock.now + 1)
    watch.world.slurm.power_down_force(["a-e2"])
    watch.blind(900, cloud=True)
    watch.submit(2, 5, "a")
    settle(watch, 3)


def test_a_failed_launch_opens_no_login() -> None:
    """Its nodes were powered up for no job, failed, and were given to a job: seven instances of six."""
    watch = small()
    watch.submit(6, 5, "a")
    watch.world.clock.run_until(watch.world.clock.now + 1)
    watch.world.cloud.rates = FaultRates(capacity=0.6)
    watch.submit(1, 5, "a")
    watch.world.slurm.power_down_force(["a-e1"])
    watch.world.clock.run_until(watch.world.clock.now + 200)
    settle(watch, 3)


def test_a_job_too_large_for_the_pool_that_slurm_chose_waits_for_the_other() -> None:
    watch = small()
    for name in [f"a-e{number}" for number in range(1, 12)]:
        watch.world.slurm.drain(name, "a look at it", "alice")
    job = watch.submit(5, 600, "a")
    watch.world.clock.run_until(watch.world.clock.now + 600)
    assert not job.held, job.comment
    settle(watch, 3)


class AnyOrder(RuleBasedStateMachine):
    """Operators, faults and crashes in any order that Hypothesis finds; at the end everything must come to rest."""

    @initialize(seed=st.integers(0, 1000), capped=st.booleans(), baked=st.booleans(), limit=st.sampled_from([None, 7]))
    def begin(self, seed: int, capped: bool, baked: bool, limit: int | None) -> None:
        limits = {} if limit is None else {"max_nodes": limit}
        self.watch = Watch(
            policy(pool("a", 6), pool("b", 4, partition="a", baked=baked), **limits),
            seed=seed,
            rates=FaultRates(),
            slurm=SlurmSettings(idle_timeout=300, max_powered_nodes=(limit or 10) if capped else None),
            cloud=CloudSettings(boot_seconds=200, listing_lag=60),
        )
        self.world = self.watch.world

    def _job(self, index: int) -> int:
        jobs = list(self.world.slurm.jobs)
        return jobs[index % len(jobs)] if jobs else 0

    def _node(self, index: int) -> str:
        nodes = list(self.world.slurm.nodes)
        return nodes[index % len(nodes)]

    def _instance(self, index: int) -> str:
        alive = list(self.world.cloud.alive)
        return alive[index % len(alive)] if alive else ""

    @rule(nodes=st.integers(1, 6), seconds=st.sampled_from([5, 600, 7200]))
    def submit(self, nodes: int, seconds: int) -> None:
        self.watch.submit(nodes, seconds, "a")

    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        self.world.slurm.cancel(self._job(index))

    @rule(index=st.integers(0, 9), back=st.booleans())
    def hold(self, index: int, back: bool) -> None:
        (self.world.slurm.release if back else self.world.slurm.hold)(self._job(index))

    @rule(index=st.integers(0, 21), back=st.booleans())
    def drain(self, index: int, back: bool) -> None:
        if back:
            self.world.slurm.undrain(self._node(index))
        else:
            self.world.slurm.drain(self._node(index), "a look at it", "alice")

    @rule(index=st.integers(0, 21))
    def power_up(self, index: int) -> None:
        self.world.slurm.power_up(self._node(index))

    @rule(index=st.integers(0, 21))
    def give_up(self, index: int) -> None:
        self.world.slurm.power_down_force([self._node(index)])

    @rule(index=st.integers(0, 9), stop=st.booleans())
    def lose(self, index: int, stop: bool) -> None:
        cloud = self.world.cloud
        (cloud.stop if stop else cloud.vanish)(self._instance(index))

    @rule(index=st.integers(0, 30))
    def stray(self, index: int) -> None:
        """An instance with our tags that was not requested, under a name that Slurm may not know."""
        self.world.cloud.create(f"a-e{index + 1}", "a", 1, f"{self.world.cloud.accepted}{TWIN}")

    @rule(fault=st.sampled_from(["", "capacity", "late_capacity", "limit", "unknown_done", "unknown_lost"]))
    def weather(self, fault: str) -> None:
        self.world.cloud.rates = FaultRates(**{fault: 0.6} if fault else {})

    @rule(fault=st.sampled_from(["dead_boot", "slow_boot", "duplicate", "throttle", "configuration"]))
    def worse_weather(self, fault: str) -> None:
        self.world.cloud.rates = FaultRates(**{fault: 0.6})

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @rule(seconds=st.sampled_from([30, 900]), slurm=st.booleans())
    def blind(self, seconds: int, slurm: bool) -> None:
        self.watch.blind(seconds, slurm=slurm, cloud=not slurm)

    @rule(seconds=st.sampled_from([1, 3, 10, 60, 200, 600, 3600]))
    def wait(self, seconds: int) -> None:
        self.world.clock.run_until(self.world.clock.now + seconds)

    @precondition(lambda self: hasattr(self, "watch"))
    @invariant()
    def sound(self) -> None:
        self.watch.check()

    def teardown(self) -> None:
        if hasattr(self, "watch"):
            settle(self.watch, 24 * 7)  # forty jobs of two hours, one after the other


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    derandomize="GPUCLUSTER_SOAK_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
