"""The autoscaler's configuration: pools, limits, prices and times, from one JSON file that Ansible writes.

The file holds no secret. `handover.autoscaling` writes what `Policy.parse` reads; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpucluster.controller import join_files
from gpucluster.errors import InputError
from gpucluster.oci.names import number_of

VERSION = 1
CONFIG_FILE = Path("/etc/gpucluster/autoscaler.json")
STATE_DIRECTORY = Path("/var/lib/gpucluster-autoscaler")
SPOOL_DIRECTORY = Path("/var/spool/gpucluster-autoscaler")
POKE_SOCKET = Path("/run/gpucluster-autoscaler/poke")
JOIN_PUBLIC_KEY = join_files.PUBLIC


#: What gives work to the nodes.
Scheduler = Literal["slurm", "kubernetes"]


@dataclass(frozen=True, slots=True)
class NewNode:
    """What Kubernetes will see of a new node of a pool: pods that wait are compared with it.

    Args:
        capacity: what pods can have of it, by resource: `cpu` in cores, `memory` in bytes, others in units.
        labels: with which it registers, beside those that kubelet sets itself.
        taints: each with `key`, `value` and `effect`.
        architecture: as kubelet calls it: amd64 or arm64.
        idle_seconds: without pods, until it is given up.
    """

    capacity: Mapping[str, float]
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    architecture: str
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """How the program reaches the API server of Kubernetes: the path of kubectl, and of a kubeconfig of its own."""

    kubectl: str
    kubeconfig: str


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """One elastic pool.

    Args:
        partition: the Slurm partition; several pools may share one. With Kubernetes it is the pool's name.
        prefix: names are `<prefix><n>`, n from 1 to `names`. There are more names than `max_nodes`, because a name
            can't be used while its old instance is terminating.
        max_nodes: how many nodes may exist at once.
        compute_cluster_id: of an RDMA pool; no job spans two compute clusters.
        baked: new nodes boot into slurmd; otherwise `join.yml` configures them.
        preemptible: its instances are preemptible: the cloud may end them at any time.
        price_factor: what they cost of the price of their shape.
        machine: what is paid for a node and what Slurm counts of it, as `handover.billing` writes it.
        node: with Kubernetes, what a new node will be; None with Slurm.
    """

    name: str
    partition: str
    prefix: str
    names: int
    max_nodes: int
    shape: str
    availability_domain: str
    instance_configuration_id: str
    compute_cluster_id: str | None = None
    baked: bool = False
    preemptible: bool = False
    price_factor: float = 1.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    node: NewNode | None = None

    def owns(self, node: str) -> bool:
        """Whether a node's name is one of this pool's names."""
        return 0 < number_of(self.prefix, node) <= self.names


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """Limits on the number of nodes and on cost; None means unlimited.

    Args:
        max_cost_per_hour: in the currency of the price table. Pools whose shape has no price count as 0.
    """

    max_nodes: int | None = None
    max_launches_per_hour: int | None = None
    max_cost_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Budgets:
    """What accounts may spend in a calendar month until no new node is launched for their jobs.

    Args:
        amounts: account -> money. `currency`: of it, and of the prices.
        parents: account -> the account above it: jobs count for both.
        prices: pool -> price of an hour; None if it is not known.
        hosts: the permanent hosts, as rows of `controller.accounts.usage`.
    """

    amounts: Mapping[str, float]
    parents: Mapping[str, str]
    prices: Mapping[str, float | None]
    currency: str
    timezone: str
    hosts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Durations in seconds. Each can be set in the file; these are the defaults.

    Args:
        tick: between two reconcile passes when nothing happens; `busy_tick`: while nodes power up or down.
        listing_lag: for how long the cloud's listing may lack an instance that it has accepted.
        orphan_grace: how long an instance may exist without a node before it is terminated.
        launch_deadline: from the request to RUNNING; `join_deadline`: from RUNNING to a registered slurmd.
        gang_retry_window: for how long failed launches of a gang are tried again before it is rolled back.
        retry_pause: between two tries of a launch.
        backoff, backoff_limit: until a job that was rolled back is tried again: doubled each time, up to the limit.
        cool_down, cool_down_limit: of a pool without capacity: doubled each time, up to the limit.
        limit_cool_down: of a pool after a LIMIT or CONFIGURATION.
        unbacked_after: for how long the listing must lack the instance of a node in service before the node is given
            up.
        silent_grace: for how long a slurmd may not answer before the node is given up.
        drain_ahead: how long before a maintenance reboot a node is drained.
    """

    tick: float = 10.0
    busy_tick: float = 1.0
    listing_lag: float = 120.0
    orphan_grace: float = 300.0
    launch_deadline: float = join_files.LAUNCH_SECONDS
    join_deadline: float = 600.0
    gang_retry_window: float = 120.0
    retry_pause: float = 15.0
    backoff: float = 60.0
    backoff_limit: float = 1800.0
    cool_down: float = 300.0
    cool_down_limit: float = 3600.0
    limit_cool_down: float = 600.0
    unbacked_after: float = 60.0
    silent_grace: float = 600.0
    drain_ahead: float = 3600.0


@dataclass(frozen=True, slots=True)
class Authentication:
    """How the program authenticates to the API: as an instance principal, or with a key.

    Args:
        config_file, profile: an OCI configuration file (method "api_key").
        endpoint: the address of the API where it is not Oracle's own.
    """

    method: str
    config_file: str = ""
    profile: str = "DEFAULT"
    endpoint: str = ""


# How often a gang may be rolled back before its job is held; how many orphaned instances one pass may terminate.
MAX_ATTEMPTS = 5
MAX_ORPHANS_PER_PASS = 10
# How many nodes in a row may fail to register before the pool cools down.
MAX_BOOT_FAILURES = 3
# In so many passes the listing must lack an instance before it counts as gone.
STRIKES = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """The configuration for one cluster.

    Args:
        identity: the random identity of the cluster, with which its nodes are told from those of another cluster of
            the same name; empty for a cluster that has none.
        compartment_id: of the elastic nodes.
        kubernetes: with the scheduler kubernetes, how its API is reached.
        reboots: whether the health service reboots nodes where that may fix them.
        budgets: of accounts; None where none has one.
        hardware_checks: the checks whose failure shows that the physical host is bad, which is reported to Oracle; none
            where nothing is reported.
    """

    cluster: str
    compartment_id: str
    region: str
    authentication: Authentication
    pools: Mapping[str, PoolPolicy]
    limits: PolicyLimits = field(default_factory=PolicyLimits)
    prices: Mapping[str, float] = field(default_factory=dict)
    times: Times = field(default_factory=Times)
    scheduler: Scheduler = "slurm"
    kubernetes: ApiAccess | None = None
    identity: str = ""
    reboots: bool = False
    hardware_checks: frozenset[str] = frozenset()
    budgets: Budgets | None = None

    @classmethod
    def load(cls, file: Path = CONFIG_FILE) -> Policy:
        """Read the file.

        Raises:
            InputError: the file can't be read, or its content is wrong.
        """
        try:
            raw = json.loads(file.read_text())
        except OSError as error:
            raise InputError(f"can't read the policy: {error.strerror}", where=str(file), hint=_HINT) from error
        except ValueError as error:
            raise InputError(f"the policy is not JSON: {error}", where=str(file), hint=_HINT) from error
        return cls.parse(raw, where=str(file))

    @classmethod
    def parse(cls, raw: Any, *, where: str = "") -> Policy:
        """Make a policy from the file's content.

        Raises:
            InputError: a key is missing, unknown or of the wrong kind.
        """
        try:
            if raw["version"] != VERSION:
                raise InputError(f"the policy is of version {raw['version']}, not {VERSION}", where=where, hint=_HINT)
            scheduler = _scheduler(raw)
            return cls(
                cluster=raw["cluster"],
                compartment_id=raw["compartment_id"],
                region=raw["region"],
                authentication=Authentication(**raw["authentication"]),
                pools={name: _pool(name, pool, scheduler) for name, pool in raw["pools"].items()},
                limits=PolicyLimits(**raw.get("limits", {})),
                prices=dict(raw.get("prices", {})),
                times=Times(**{key: float(value) for key, value in raw.get("times", {}).items()}),
                scheduler=scheduler,
                kubernetes=ApiAccess(**raw["kubernetes"]) if scheduler == "kubernetes" else None,
                identity=str(raw.get("identity", "")),
                reboots=bool(raw.get("reboots", False)),
                hardware_checks=frozenset(map(str, raw.get("hardware_checks", ()))),
                budgets=_budgets(raw["budgets"]) if raw.get("budgets") else None,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"the policy lacks or misspells {error}", where=where, hint=_HINT) from error

    def price(self, pool: str) -> float | None:
        """What an hour of a node of a pool costs; None if its shape has no price."""
        price = self.prices.get(self.pools[pool].shape)
        return None if price is None else price * self.pools[pool].price_factor

    def pool_of(self, node: str) -> str:
        """The pool that a node's name belongs to; empty if it belongs to none."""
        return next((name for name, pool in self.pools.items() if node.startswith(pool.prefix) and pool.owns(node)), "")


def _scheduler(raw: Mapping[str, Any]) -> Scheduler:
    """Slurm where the file names none."""
    match raw.get("scheduler", "slurm"):
        case "slurm":
            return "slurm"
        case "kubernetes":
            return "kubernetes"
        case other:
            raise ValueError(f"scheduler: {other!r} is neither slurm nor kubernetes")


def _budgets(raw: Mapping[str, Any]) -> Budgets:
    return Budgets(**{**raw, "hosts": tuple(raw["hosts"])})


def _pool(name: str, raw: Mapping[str, Any], scheduler: Scheduler) -> PoolPolicy:
    for key in ("names", "max_nodes"):
        if type(raw[key]) is not int or raw[key] < 0:
            raise ValueError(f"pools.{name}.{key}: {raw[key]!r} is not a number of nodes")
    node = _node(name, raw["node"]) if scheduler == "kubernetes" else None
    return PoolPolicy(name=name, **{**raw, "node": node})


def _node(pool: str, raw: Mapping[str, Any]) -> NewNode:
    taints = tuple({key: str(taint[key]) for key in ("key", "value", "effect")} for taint in raw["taints"])
    if unknown := raw.keys() - {"capacity", "labels", "taints", "architecture", "idle_seconds"}:
        raise ValueError(f"pools.{pool}.node.{min(unknown)}")
    return NewNode(
        capacity={str(name): float(amount) for name, amount in raw["capacity"].items()},
        labels={str(name): str(value) for name, value in raw["labels"].items()},
        taints=taints,
        architecture=str(raw["architecture"]),
        idle_seconds=float(raw["idle_seconds"]),
    )


_HINT = "Run gpucluster apply: it writes this file"
