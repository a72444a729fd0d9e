"""What a cluster should be, and the part of it that a verdict is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpucluster.agent.checks.model import Check, Profile
from gpucluster.errors import InputError
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
class Expectation:
    """The expected state of a cluster, or of the part of it that is checked.

    Args:
        hosts: every host that is checked.
        pools: the permanent nodes of each pool.
        people: the users that every host must know, with the number of their primary group.
        home_mount_path: None if there is no shared home. Then there is no directory (LDAP) either.
        scheduler: whether there is Slurm. Without it, nodes must reach each other by ssh.
        containers: whether Slurm's steps may run in containers.
        autoscaler: whether a pool is elastic; then the autoscaler must run.
        partitions: by pool, its partition if that has another name.
        local_drives: by host, how many of its own drives must be in one file system. Hosts without drives are left out.
        rdma_addressed: the hosts whose RDMA interfaces get addresses from user data.
        hardware_emulated: hosts have less than their shape says. What one of them does not have is not checked there.
        login: the login nodes. With them, only operators log in to the controller.
        operators: the group whose members are operators.
        profile: which of its own checks each host runs; None: it is not asked.
        whole: whether that is the whole cluster, and what concerns it as a whole is checked.
    """

    controller: str
    hosts: Sequence[str]
    pools: Mapping[str, Sequence[str]]
    people: Mapping[str, int]
    home_mount_path: str | None
    accounting: bool
    scheduler: bool = True
    containers: bool = False
    autoscaler: bool = False
    partitions: Mapping[str, str] = field(default_factory=dict)
    local_drives: Mapping[str, int] = field(default_factory=dict)
    rdma_addressed: Sequence[str] = ()
    hardware_emulated: bool = False
    login: Sequence[str] = ()
    operators: str = ""
    profile: Profile | None = None
    whole: bool = True

    @property
    def nodes(self) -> tuple[str, ...]:
        """The permanent nodes of all pools."""
        return tuple(node for nodes in self.pools.values() for node in nodes)

    def pool_of(self, node: str) -> str:
        """The pool of a permanent node."""
        return next(pool for pool, nodes in self.pools.items() if node in nodes)


@dataclass(frozen=True)
class ClusterCheck(Check[Expectation]):
    """A check that the operator's side judges.

    Args:
        subjects: what it is judged for; none if there is nothing of the kind in this cluster.
    """

    subjects: Callable[[Expectation], Sequence[str]] = lambda _expected: ()


def narrowed(expected: Expectation, pools: Sequence[str] = (), nodes: str = "") -> Expectation:
    """The part of the cluster that has these pools and nodes; without both, all of it.

    It has nodes and pools alone: not the controller, no login nodes, and nothing that concerns the cluster as a whole.

    Args:
        pools: names of pools.
        nodes: permanent nodes, as Slurm's hostlist.

    Raises:
        InputError: there is no such pool or node, or none that is in both.
    """
    if not pools and not nodes:
        return expected
    for pool in pools:
        if pool not in expected.pools:
            raise InputError(f"there is no pool {pool}", hint=_known(pool, expected.pools, "Pools"))
    chosen = {pool: listed for pool, listed in expected.pools.items() if not pools or pool in pools}
    if nodes:
        wanted = _nodes(nodes, expected)
        chosen = {pool: [node for node in listed if node in wanted] for pool, listed in chosen.items()}
        chosen = {pool: listed for pool, listed in chosen.items() if listed}
        outside = sorted(wanted - {node for listed in chosen.values() for node in listed})
        if outside:
            raise InputError(f"{', '.join(outside)} is not in {', '.join(pools)}", hint="Leave out --pool or --nodes")
    members = {node for listed in chosen.values() for node in listed}
    return replace(
        expected,
        hosts=[host for host in expected.hosts if host in members],
        pools=chosen,
        local_drives={host: drives for host, drives in expected.local_drives.items() if host in members},
        rdma_addressed=[host for host in expected.rdma_addressed if host in members],
        login=(),
        whole=False,
    )


def _nodes(text: str, expected: Expectation) -> set[str]:
    try:
        wanted = expand(text)
    except HostlistError as error:
        raise InputError(str(error), hint="Write names as Slurm does, such as compute-[1-4,7]") from None
    for node in wanted:
        if node in expected.nodes:
            continue
        elastic = next((pool for pool in expected.pools if number_of(elastic_prefix(pool), node)), None)
        if elastic:
            hint = f"It is elastic: gpucluster verify --pool {elastic}, which tries the elastic nodes that are up"
            raise InputError(f"{node} is no permanent node", hint=hint)
        raise InputError(f"there is no node {node}", hint=_known(node, expected.nodes, "Nodes"))
    if not wanted:
        raise InputError("the list of nodes is empty")
    return set(wanted)


# So many names are shown where none is similar.
_SHOWN = 8


def _known(word: str, known: Mapping[str, object] | Sequence[str], noun: str) -> str:
    listed = list(known)
    more = ", ..." if len(listed) > _SHOWN else ""
    return did_you_mean(word, listed) or f"{noun}: {', '.join(listed[:_SHOWN]) or 'none'}{more}"
