"""A model of the cloud, for instances only.

It does what OCI documents or was observed to do: a launch is accepted, refused, or its result is unknown; the same
token returns the same instance, and is invalid once that is gone; an accepted instance may end because no host is free;
the listing lags; a terminated instance stays listed for a while; a host name is free only when its instance is gone.

What it does not prove: times are drawn from simple distributions that were not measured on bare metal, faults are
independent of each other, and quotas, networks and images do not exist. One boot time stands for image, cloud-init,
health checks and slurmd together.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from gpucluster.autoscaler.decide.types import CloudInstance, Fault, Launch
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.oci.states import LifecycleState

_NO_HOST = "500 InternalError: Out of host capacity"
# Refusals that the cloud may answer with.
_REFUSALS = (
    ("capacity", Fault.CAPACITY, _NO_HOST),
    ("limit", Fault.LIMIT, "400 LimitExceeded"),
    ("configuration", Fault.CONFIGURATION, "400 InvalidParameter: imageId"),
    ("unknown_lost", Fault.TRANSIENT, "the connection was lost"),
)
# States in which an instance costs money: a stopped GPU instance does, too.
_BILLED = frozenset({LifecycleState.PROVISIONING, LifecycleState.RUNNING, LifecycleState.STOPPED})
CATEGORIES = ("booting", "busy", "idle")


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How likely each fault is, for one launch (0 to 1).

    Args:
        late_capacity: accepted, and terminated by the cloud a little later.
        unknown_done, unknown_lost: the answer is lost; the launch was done, or was not.
        dead_boot, slow_boot: slurmd never registers, or only after ResumeTimeout.
        lost, stopped: of an instance that ran for a while.
        duplicate: a second instance of the same name appears.
        throttle: of one call; its answer is 429.
    """

    capacity: float = 0.0
    late_capacity: float = 0.0
    limit: float = 0.0
    configuration: float = 0.0
    unknown_done: float = 0.0
    unknown_lost: float = 0.0
    dead_boot: float = 0.0
    slow_boot: float = 0.0
    lost: float = 0.0
    stopped: float = 0.0
    duplicate: float = 0.0
    throttle: float = 0.0

    @classmethod
    def every(cls, rate: float) -> FaultRates:
        """Every fault that is not caused by the configuration, at one rate."""
        steady = {"limit", "configuration"}
        return cls(**{entry.name: rate for entry in fields(cls) if entry.name not in steady})


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """Durations in seconds, unless noted otherwise.

    Args:
        boot_seconds: from the acceptance of a launch to a slurmd that registers; `boot_spread` is a share of it.
        listing_lag: for how long a new instance may be missing in the listing.
        record_seconds: for how long a terminated instance stays listed.
        hosts: how many instances of a pool the cloud has room for; None means unlimited.
        calls_per_second: launches above that are throttled.
        names_are_unique: the subnet refuses a host name that is taken; else there is a duplicate.
        join_seconds: of a pool without a baked image, how long its configuration takes.
    """

    boot_seconds: float = 300.0
    boot_spread: float = 0.1
    call_seconds: float = 2.0
    listing_lag: float = 20.0
    terminate_seconds: float = 90.0
    record_seconds: float = 3600.0
    join_seconds: float = 120.0
    calls_per_second: float = 10.0
    hosts: int | None = None
    names_are_unique: bool = True


@dataclass(slots=True, eq=False)
class ModelInstance:
    """An instance. `seconds` counts by what it did, from its acceptance to the request to terminate it."""

    id: str
    node: str
    pool: str
    generation: int
    token: str
    created_at: float
    state: LifecycleState = LifecycleState.PROVISIONING
    version: int = 0
    shown: int = 0
    boots: bool = True
    category: str = "booting"
    since: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))

    @property
    def billed(self) -> bool:
        """It costs money."""
        return self.state in _BILLED

    @property
    def gone(self) -> bool:
        """It is terminated."""
        return self.state == LifecycleState.TERMINATED


@dataclass(frozen=True, slots=True)
class LaunchAnswer:
    """The cloud's answer to one call: an instance, a fault, or a 429."""

    instance_id: str = ""
    fault: Fault | None = None
    message: str = ""
    throttled: bool = False


class CloudModel:
    """The instances of one cluster.

    Args:
        register: called when a slurmd starts: (node, instance id) -> whether Slurm accepts it. lost: when one ends.
        joins: pools without a baked image, whose instances become nodes by a Join.
    """

    def __init__(
        self,
        clock: Clock,
        settings: CloudSettings,
        rates: FaultRates,
        seed: int,
        *,
        joins: frozenset[str] = frozenset(),
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.rates = rates
        self.random = random.Random(seed)  # noqa: S311  nothing secret
        self.joins = joins
        self.register: Callable[[str, str], object] = lambda node, instance: None
        self.lost: Callable[[str, str], None] = lambda node, instance: None
        self.failed_late: Callable[[ModelInstance], None] = lambda instance: None
        self.changed: Callable[[], None] = lambda: None
        self.instances: dict[str, ModelInstance] = {}
        self.alive: dict[str, ModelInstance] = {}
        self.listing: dict[str, CloudInstance] = {}
        self.by_token: dict[str, str] = {}
        self.names: Counter[str] = Counter()
        self.in_pool: Counter[str] = Counter()
        self.seconds = dict.fromkeys(CATEGORIES, 0.0)
        self.seconds_of_pool: dict[str, float] = {}
        self.accepted = 0
        self.faults: dict[str, int] = {}
        self._allowance = settings.calls_per_second
        self._allowance_at = clock.now
        self._serial = 0

    # --- calls -----

    def launch(self, launch: Launch) -> LaunchAnswer:
        """LaunchInstanceConfiguration with a retry token."""
        if self._throttled():
            return LaunchAnswer(throttled=True, message="429 TooManyRequests")
        answer = self._known(launch) or self._refused(launch)
        if answer is not None:
            return answer
        instance = self.create(launch.node, launch.pool, launch.generation, launch.token)
        if self._occurs("duplicate"):
            self.create(launch.node, launch.pool, launch.generation, f"{launch.token}-twin")
        if self._occurs("unknown_done"):
            return LaunchAnswer(fault=Fault.TRANSIENT, message="timed out")
        return LaunchAnswer(instance_id=instance.id)

    def terminate(self, instance_id: str) -> None:
        """TerminateInstance; does nothing for an instance that is ending."""
        self.vanish(instance_id)

    def join(self, instance_id: str) -> None:
        """The configuration of an instance of a pool without a baked image has ended."""
        instance = self.alive.get(instance_id)
        if instance is not None and instance.state == LifecycleState.RUNNING and instance.boots:
            self.register(instance.node, instance.id)

    # --- events without a call -----

    def vanish(self, instance_id: str) -> None:
        """It terminates: because of a hardware fault, an administrator, or a request of the autoscaler."""
        instance = self.alive.get(instance_id)
        if instance is None or not instance.billed:
            return
        self._set_state(instance, LifecycleState.TERMINATING)
        self.clock.after(self.settings.terminate_seconds, lambda: self._ended(instance))
        self.lost(instance.node, instance.id)

    def create(self, node: str, pool: str, generation: int, token: str) -> ModelInstance:
        """A new instance is created."""
        self._serial += 1
        now = self.clock.now
        instance = ModelInstance(f"instance-{self._serial}", node, pool, generation, token, created_at=now, since=now)
        self.instances[instance.id] = self.alive[instance.id] = instance
        self.by_token[token] = instance.id
        self.names[node] += 1
        self.in_pool[pool] += 1
        self.accepted += 1
        self._publish_later(instance)
        self._draw_faults(instance)
        return instance

    def stop(self, instance_id: str) -> None:
        """An administrator stops it; it still costs money."""
        instance = self.alive.get(instance_id)
        if instance is not None and instance.state == LifecycleState.RUNNING:
            self._set_state(instance, LifecycleState.STOPPED)
            self.lost(instance.node, instance.id)

    def categorize(self, instance_id: str, category: str) -> None:
        """From now on the instance boots, is busy, or is idle."""
        instance = self.alive.get(instance_id)
        if instance is not None and instance.billed and instance.category != category:
            self._settle(instance)
            instance.category = category

    def settle(self) -> None:
        """Count the seconds of all live instances, up to now."""
        for instance in self.alive.values():
            self._settle(instance)

    # --- internals -----

    def _throttled(self) -> bool:
        rate, now = self.settings.calls_per_second, self.clock.now
        self._allowance = min(rate, self._allowance + (now - self._allowance_at) * rate)
        self._allowance_at = now
        if self._allowance < 1.0 or self._occurs("throttle"):
            return True
        self._allowance -= 1.0
        return False

    def _occurs(self, fault: str) -> bool:
        rate: float = getattr(self.rates, fault)
        occurs = rate > 0 and self.random.random() < rate
        if occurs:
            self._count(fault)
        return occurs

    def _count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def _known(self, launch: Launch) -> LaunchAnswer | None:
        """The same token again, or a name that is taken."""
        known = self.instances.get(self.by_token.get(launch.token, ""))
        if known is not None and known.billed:
            return LaunchAnswer(instance_id=known.id)
        if known is not None:
            return LaunchAnswer(fault=Fault.TRANSIENT, message="409 InvalidatedRetryToken")
        if self.names[launch.node]:
            self._count("name_taken")
            if self.settings.names_are_unique:
                return LaunchAnswer(fault=Fault.TRANSIENT, message="409 Conflict: the host name is taken")
        return None

    def _refused(self, launch: Launch) -> LaunchAnswer | None:
        hosts = self.settings.hosts
        if hosts is not None and self.in_pool[launch.pool] >= hosts:
            self._count("no_host")
            return LaunchAnswer(fault=Fault.CAPACITY, message=_NO_HOST)
        for fault, kind, message in _REFUSALS:
            if self._occurs(fault):
                return LaunchAnswer(fault=kind, message=message)
        return None

    def _draw_faults(self, instance: ModelInstance) -> None:
        """Draw the instance's future at its creation."""
        settings = self.settings
        boot = settings.boot_seconds * (1 + settings.boot_spread * (2 * self.random.random() - 1))
        if self._occurs("late_capacity"):
            self.clock.after(min(boot / 2, 60.0), lambda: self._terminated_early(instance))
            return
        if self._occurs("dead_boot"):
            instance.boots = False
        elif self._occurs("slow_boot"):
            boot += 2000.0
        self.clock.after(min(boot / 2, 60.0), lambda: self._running(instance))
        if instance.pool not in self.joins:
            self.clock.after(boot, lambda: self._booted(instance))
        later = boot + self.random.random() * 4 * 3600
        if self._occurs("lost"):
            self.clock.after(later, lambda: self.vanish(instance.id))
        if self._occurs("stopped"):
            self.clock.after(later, lambda: self.stop(instance.id))

    def _running(self, instance: ModelInstance) -> None:
        if instance.state == LifecycleState.PROVISIONING:
            self._set_state(instance, LifecycleState.RUNNING)

    def _booted(self, instance: ModelInstance) -> None:
        if instance.state == LifecycleState.RUNNING and instance.boots:
            self.register(instance.node, instance.id)

    def _terminated_early(self, instance: ModelInstance) -> None:
        if instance.state == LifecycleState.PROVISIONING:
            self._ended(instance)
            self.failed_late(instance)

    def _ended(self, instance: ModelInstance) -> None:
        self._set_state(instance, LifecycleState.TERMINATED)
        del self.alive[instance.id]
        self.names[instance.node] -= 1
        self.in_pool[instance.pool] -= 1
        self.clock.after(self.settings.record_seconds, lambda: self._forget(instance))

    def _forget(self, instance: ModelInstance) -> None:
        self.listing.pop(instance.id, None)
        self.instances.pop(instance.id, None)
        self.by_token.pop(instance.token, None)

    def _set_state(self, instance: ModelInstance, state: LifecycleState) -> None:
        self._settle(instance)
        instance.state = state
        self._publish_later(instance)

    def _publish_later(self, instance: ModelInstance) -> None:
        """The listing shows the old state for a while."""
        instance.version += 1
        state, version = instance.state, instance.version
        lag = self.random.random() * self.settings.listing_lag
        self.clock.after(lag, lambda: self._publish(instance, state, version))

    def _publish(self, instance: ModelInstance, state: LifecycleState, version: int) -> None:
        if instance.id not in self.instances or version < instance.shown:
            return
        instance.shown = version
        self.listing[instance.id] = CloudInstance(
            id=instance.id,
            node=instance.node,
            pool=instance.pool,
            generation=instance.generation,
            state=state,
            created_at=instance.created_at,
        )
        self.changed()

    def _settle(self, instance: ModelInstance) -> None:
        took = self.clock.now - instance.since
        instance.since = self.clock.now
        if instance.billed:
            instance.seconds[instance.category] += took
            self.seconds[instance.category] += took
            self.seconds_of_pool[instance.pool] = self.seconds_of_pool.get(instance.pool, 0.0) + took
