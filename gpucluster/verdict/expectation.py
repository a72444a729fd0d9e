"""What a cluster should be, and the part of it that a verdict is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from typing import Any

from gpucluster.errors import InputError
from gpucluster.node_agent.checks.model import Check, CheckOutcome, Measurements, Profile, Reaction, Scope
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.slurm.hostlists import HostlistError, expand
from gpucluster.text import did_you_mean


class Level(StrEnum):
    """How much `verify` does."""

    #: Seconds. Jobs of users go on.
    QUICK = "quick"
    #: Also what needs nodes for itself.
    FULL = "full"

    @property
    def profile(self) -> Profile:
        """Which of its own checks each host runs."""
        return Profile(self.value)


@dataclass(frozen=True)
class KubernetesExpectation:
    """What is expected of Kubernetes.

    Args:
        release: of every kubelet, "1.34.2".
        labels: by pool, labels that its nodes must have.
        taints: by pool, taints that its nodes must have: {key, value, effect}.
        gpus: by permanent node, what pods can have of its GPUs: the number by resource, so that divided GPUs
            (`nvidia.com/mig-1g.10gb`) are none of the whole ones. Nodes without GPUs are left out.
        claims: whether pods claim GPUs of NVIDIA's DRA driver, and no device plugin offers them.
        functions: by permanent node, how many RDMA devices pods can have as a resource. Nodes without are left out.
        daemonsets: names of those that offer the hardware of nodes to pods.
        attachments: names of the networks that pods join by their RDMA interfaces.
        managed: by pool that OKE manages, how many nodes it has.
        control_plane: self or oke, as cluster.yml has it.
        rdma: by permanent node, the RDMA devices of its shape. Nodes of pools without RDMA are left out.
        pod_rdma: by pool, what a pod needs for them: {annotations, container, volumes}.
        names: by permanent node, its name in Kubernetes where that is another one.
    """

    release: str
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    taints: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    claims: bool = False
    functions: Mapping[str, int] = field(default_factory=dict)
    daemonsets: Sequence[str] = ()
    attachments: Sequence[str] = ()
    managed: Mapping[str, int] = field(default_factory=dict)
    control_plane: str = "self"
    rdma: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pod_rdma: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Expectation:
    """The expected state of a cluster, or of the part of it that is checked.

    Args:
        hosts: every host that is checked.
        pools: the permanent nodes of each pool.
        people: the users that every host must know, with the number of their primary group.
        directory_groups: the groups of a directory that exists, which every host must know.
        home_mount_path: None if there is no shared home. Then there is no directory (LDAP) either.
        scheduler: slurm, kubernetes or none, as cluster.yml has it. Without one, nodes must reach each other by ssh.
        kubernetes: what is expected of Kubernetes; None without it.
        slurm_version: the version that gpucluster builds; empty for that of the distribution, and without Slurm.
        rest: whether the controller has Slurm's REST API.
        today: the day of the check, for ends of support. On the first day of all, none has ended.
        containers: whether Slurm's steps may run in containers.
        autoscaler: whether a pool is elastic; then the autoscaler must run.
        monitoring: whether Prometheus runs.
        partitions: by pool, its partition if that has another name.
        local_drives: by host, how many of its own drives must be in one file system. Hosts without drives are left out.
        rdma_addressed: the hosts whose RDMA interfaces get addresses from user data.
        rdma_places: the permanent nodes whose place in the RDMA network Slurm has to know.
        hardware_emulated: hosts have less than their shape has. What one of them does not have is not checked there.
        login: the login nodes. With them, only operators log in to the controller.
        operators: the group whose members are operators.
        profile: which of its own checks each host runs; None: it is not asked.
        whole: whether that is the whole cluster, and what concerns it as a whole is checked.
        with_elastic: whether the elastic nodes of the pools that are up are tried, too.
    """

    controller: str
    hosts: Sequence[str]
    pools: Mapping[str, Sequence[str]]
    people: Mapping[str, int]
    home_mount_path: str | None
    accounting: bool
    scheduler: str = "slurm"
    directory_groups: Sequence[str] = ()
    containers: bool = False
    autoscaler: bool = False
    monitoring: bool = False
    partitions: Mapping[str, str] = field(default_factory=dict)
    local_drives: Mapping[str, int] = field(default_factory=dict)
    rdma_addressed: Sequence[str] = ()
    rdma_places: Sequence[str] = ()
    hardware_emulated: bool = False
    login: Sequence[str] = ()
    operators: str = ""
    profile: Profile | None = None
    whole: bool = True
    with_elastic: bool = True
    kubernetes: KubernetesExpectation | None = None
    slurm_version: str = ""
    rest: bool = False
    today: date = date.min

    @property
    def nodes(self) -> tuple[str, ...]:
        """The permanent nodes of all pools."""
        return tuple(node for nodes in self.pools.values() for node in nodes)

    def pool_of(self, node: str) -> str:
        """The pool of a permanent node."""
        return next(pool for pool, nodes in self.pools.items() if node in nodes)


#: Seconds for the facts of a host.
FACTS_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class ClusterCheck(Check[Expectation]):
    """A check that the operator's side judges.

    Args:
        subjects: what it is judged for; none if there is nothing of the kind in this cluster.
    """

    subjects: Callable[[Expectation], Sequence[str]]


def every_host(expected: Expectation) -> Sequence[str]:
    """The subjects of a check of all hosts."""
    return expected.hosts


def cluster_check(
    title: str,
    *needs: str,
    remedy: str,
    subjects: Callable[[Expectation], Sequence[str]],
    scope: Scope = Scope.CLUSTER,
    profiles: Collection[Profile] = (Profile.QUICK, Profile.FULL),
    timeout_s: float = FACTS_SECONDS,
    reaction: Reaction = Reaction.REPORT,
    applies: Callable[[Expectation, str], str] = lambda _expected, _subject: "",
) -> Callable[[Callable[[Measurements, Expectation, str], CheckOutcome]], ClusterCheck]:
    """Declare the function that follows as the judge of a check; the check has its name, without the first underscore.

    The arguments are those of `ClusterCheck`. Without other ones the check is about the whole cluster, runs at every
    level, judges facts of hosts, and is only reported.
    """

    def declare(judge: Callable[[Measurements, Expectation, str], CheckOutcome]) -> ClusterCheck:
        return ClusterCheck(
            name=judge.__name__.removeprefix("_"), title=title, scope=scope, profiles=profiles, needs=needs,
            timeout_s=timeout_s, remedy=remedy, reaction=reaction, judge=judge, applies=applies, subjects=subjects,
        )  # fmt: skip

    return declare


def chosen(members: Mapping[str, Sequence[str]], pools: Sequence[str] = (), nodes: str = "") -> dict[str, list[str]]:
    """The pools with those of their permanent nodes that the user asks for.

    Args:
        members: the permanent nodes of each pool.
        pools: names of pools; all without any.
        nodes: permanent nodes, as Slurm's hostlist; all without any.

    Raises:
        InputError: there is no such pool or node, or a node is in none of these pools.
    """
    for pool in pools:
        if pool not in members:
            raise InputError(f"there is no pool {pool}", hint=_known(pool, members, "Pools"))
    selection = {pool: list(listed) for pool, listed in members.items() if not pools or pool in pools}
    if not nodes:
        return selection
    node_names = _nodes(nodes, members)
    selection = {pool: [node for node in listed if node in node_names] for pool, listed in selection.items()}
    outside = [node for node in node_names if not any(node in listed for listed in selection.values())]
    if outside:
        names = f"pool {pools[0]}" if len(pools) == 1 else f"the pools {', '.join(pools)}"
        raise InputError(f"{outside[0]} is not in {names}", hint="Leave out --pool or --nodes")
    return {pool: listed for pool, listed in selection.items() if listed}


def narrowed(expected: Expectation, pools: Sequence[str] = (), nodes: str = "") -> Expectation:
    """The part of the cluster that has these pools and nodes; without both, all of it.

    It has nodes and pools alone: not the controller, no login nodes, and nothing that concerns the cluster as a whole.

    Raises:
        InputError: see `chosen`.
    """
    if not pools and not nodes:
        return expected
    left = chosen(expected.pools, pools, nodes)
    members = {node for listed in left.values() for node in listed}
    return replace(
        expected,
        hosts=[host for host in expected.hosts if host in members],
        pools=left,
        local_drives={host: drives for host, drives in expected.local_drives.items() if host in members},
        rdma_addressed=[host for host in expected.rdma_addressed if host in members],
        rdma_places=[host for host in expected.rdma_places if host in members],
        login=(),
        accounting=False,
        autoscaler=False,
        monitoring=False,
        whole=False,
        with_elastic=not nodes,
    )


def _nodes(text: str, members: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        names = expand(text)
    except HostlistError as error:
        raise InputError(str(error), hint="Write names as Slurm does, such as compute-[1-4,7]") from None
    known = {node for listed in members.values() for node in listed}
    for node in names:
        elastic = next((pool for pool in members if number_of(elastic_prefix(pool), node)), None)
        if node not in known and elastic:
            hint = f"It is elastic. To try those that are up: gpucluster verify --pool {elastic}"
            raise InputError(f"{node} is not a permanent node", hint=hint)
        if node not in known:
            raise InputError(f"there is no node {node}", hint=_known(node, sorted(known), "Nodes"))
    if not names:
        raise InputError("the list of nodes is empty", hint="Name nodes as Slurm does, such as compute-[1-4,7]")
    return names


# So many names are shown where none is similar.
_SHOWN = 8


def _known(word: str, known: Iterable[str], noun: str) -> str:
    listed = list(known)
    more = ", ..." if len(listed) > _SHOWN else ""
    return did_you_mean(word, listed) or f"{noun}: {', '.join(listed[:_SHOWN]) or 'none'}{more}"
