"""The types: an instance for as long as it is paid for, and a run of a job for as long as it has its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Hardware:
    """What Slurm counts of a host, or what a job has of one.

    Args:
        memory_mib: memory in MiB.
    """

    cpus: float = 0.0
    memory_mib: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class HostInterval:
    """One instance, from its launch to its end.

    Args:
        id: its OCID.
        name: of the host. Several instances may have it, one after the other.
        pool: `controller` and `login` are those of hosts that run no jobs.
        machine: what is sold of it: `shape`, `gpus`, `ocpus`, `memory_gb`.
        end: infinity for one that is there now.
        unsure: seconds before its end in which the instances were not listed.
    """

    id: str
    name: str
    pool: str
    machine: Mapping[str, Any]
    hardware: Hardware
    begin: float
    end: float = float("inf")
    unsure: float = 0.0

    @property
    def shape(self) -> str:
        """OCI's name of the shape."""
        return str(self.machine.get("shape", ""))


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job. A job that was requeued has several.

    Args:
        nodes: names of its nodes.
        resources: what it has on all of them together.
        end: infinity for one that runs.
    """

    id: str
    user: str
    account: str
    nodes: Sequence[str]
    resources: Hardware
    begin: float
    end: float = float("inf")


#: Since when a price holds, in order, and the price of an hour; None where it is not known. The first holds before it.
Prices = Sequence[tuple[float, "float | None"]]
PriceOf = Callable[[HostInterval], Prices]


class Use(StrEnum):
    """What an instance is paid for."""

    JOB = "job"  # the share of a run
    UNUSED = "unused"  # what jobs on the node leave of it
    IDLE = "idle"  # no job is on the node: it waits, boots or is drained
    SERVICE = "service"  # the controller or a login node


#: Pools of hosts that run no jobs.
SERVICES = frozenset({"controller", "login"})


@dataclass(frozen=True, slots=True)
class Share:
    """A part of an instance for a time in which nothing changes.

    Args:
        part: of the instance, from 0 to 1.
        price: of an hour of the whole instance; None if it is not known.
    """

    begin: float
    end: float
    host: HostInterval
    use: Use
    part: float
    price: float | None
    run: JobRun | None = None

    @property
    def hours(self) -> float:
        """Hours of the whole instance that it is worth."""
        return (self.end - self.begin) / 3600.0 * self.part

    @property
    def money(self) -> float | None:
        """What it costs; None without a known price."""
        return None if self.price is None else self.price * self.hours
