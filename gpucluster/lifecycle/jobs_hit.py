"""The jobs that are on nodes which a plan drains, replaces or removes. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpucluster.lifecycle.resize import Scaling, pool_of
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.operations.drain import SlurmJob
from gpucluster.slurm.hostlists import HostlistError, expand
from gpucluster.terraform.plan import ResourceChange

# What a pool has only as long as it is elastic; without it its elastic nodes are removed.
_OF_ELASTIC_POOLS = ("oci_core_instance_configuration.", "oci_core_compute_cluster.")
_LEFT = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)")


@dataclass(frozen=True)
class LeavingNodes:
    """The nodes that a plan takes out of service.

    Args:
        names: of permanent nodes.
        elastic: what the names of the elastic nodes begin with that are removed with their pools.
    """

    names: frozenset[str] = frozenset()
    elastic: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.elastic)

    def of(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Those of these hosts that leave."""
        return tuple(
            host for host in hosts if host in self.names or any(number_of(each, host) > 0 for each in self.elastic)
        )


@dataclass(frozen=True)
class JobHit:
    """A job on nodes that leave service.

    Args:
        id: of Slurm.
        left: the time that it may still run, as Slurm prints it: `1-02:00:00`, `UNLIMITED`.
        left_s: the same in seconds; None without a limit.
        nodes: those of its nodes that leave.
    """

    id: str
    user: str
    left: str
    left_s: int | None
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"job {self.id} of {self.user} on {', '.join(self.nodes)} ({self.left} left)"


def leaving(hosts: Scaling, changes: Iterable[ResourceChange], elastic_pools: Collection[str]) -> LeavingNodes:
    """The nodes that a plan takes out of service.

    Args:
        hosts: what the plan does to the hosts.
        elastic_pools: the pools that cluster.yml has as elastic ones.
    """
    ended = {
        pool_of(change.address)
        for change in changes
        if change.action == "delete" and any(kind in change.address for kind in _OF_ELASTIC_POOLS)
    }
    prefixes = tuple(elastic_prefix(pool) for pool in sorted(ended - {""} - set(elastic_pools)))
    return LeavingNodes(frozenset(hosts.names("removed", "replaced", "rebooted")), prefixes)


def jobs_hit(jobs: Iterable[SlurmJob], nodes: LeavingNodes) -> tuple[JobHit, ...]:
    """The jobs that have nodes among these, those that may run longest first."""
    hit = [
        JobHit(job.id, job.user, job.left, seconds_left(job.left), on)
        for job in jobs
        if (on := nodes.of(_expanded(job.nodes)))
    ]
    return tuple(sorted(hit, key=lambda each: (each.left_s is not None, -(each.left_s or 0), each.id)))


def seconds_left(text: str) -> int | None:
    """Seconds of a time as squeue prints it (`days-hours:minutes:seconds`); None for one without an end."""
    found = _LEFT.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _expanded(hosts: str) -> list[str]:
    try:
        return expand(hosts)
    except HostlistError:
        return []
