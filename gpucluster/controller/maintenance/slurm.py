"""Slurm's commands for maintenance: reservations, the jobs that have nodes, a line in the output of a job.

As Slurm 24.11.5 and 26.05 answer: a reservation with MAINT may overlap others, and with IGNORE_JOBS it is made also
where jobs run past its beginning; they are not ended by it. A reservation that has begun does not get another
beginning: it is deleted and made again.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Callable, Protocol

from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.health.slurm import ask, expanded, moment
from gpucluster.controller.maintenance.policy import Move, NodeUse, Reserve, RunningJob, SlurmReservation
from gpucluster.node_agent.errors import Failed

# The user comes last: no other value has the separator in it.
_FIELDS = ("%A", "%e", "%N", "%u")
_STATES = "RUNNING,SUSPENDED,CONFIGURING"
_FACT = re.compile(r"(\w+)=(\S*)")
#: Not of the users: they start no jobs in it. MAINT lets it overlap; IGNORE_JOBS lets it be made over running jobs.
_FLAGS = "MAINT,IGNORE_JOBS"

Ask = Callable[..., str]


class MaintenanceScheduler(Protocol):
    """What is needed of Slurm. Each call raises Failed where Slurm does not do it."""

    def reservations(self) -> Sequence[SlurmReservation]:
        """All reservations."""

    def jobs(self) -> Sequence[RunningJob]:
        """The jobs that have nodes."""

    def reserve(self, request: Reserve) -> None:
        """Make a reservation."""

    def move(self, request: Move) -> None:
        """Give a reservation other times."""

    def delete(self, name: str) -> None:
        """Delete a reservation. One that is gone is not an error."""

    def notify(self, job: str, text: str) -> None:
        """Write a line into the output of a job."""


class SlurmMaintenance:
    """The real one.

    Args:
        ask: runs a command of Slurm, with times in UTC.
    """

    def __init__(self, ask: Ask = ask) -> None:
        self._ask = ask

    def reservations(self) -> Sequence[SlurmReservation]:
        """All reservations."""
        reservations = []
        for line in self._ask("scontrol", "--oneliner", "show", "reservations").splitlines():
            facts = dict(_FACT.findall(line))
            if "ReservationName" not in facts:
                # "No reservations in the system"
                continue
            nodes = expanded(facts.get("Nodes", ""), self._ask)
            flags = frozenset(facts.get("Flags", "").split(","))
            start, end = _seconds(facts["StartTime"]), _seconds(facts["EndTime"])
            users = "" if facts.get("Users") in (None, "(null)") else facts["Users"]
            reservations.append(SlurmReservation(facts["ReservationName"], start, end, nodes, flags, users))
        return reservations

    def jobs(self) -> Sequence[RunningJob]:
        """The jobs that have nodes."""
        text = self._ask("squeue", "--noheader", "--all", f"--states={_STATES}", f"--format={'|'.join(_FIELDS)}")
        jobs = []
        known: dict[str, frozenset[str]] = {}
        for line in text.splitlines():
            number, end, nodes, user = line.split("|", len(_FIELDS) - 1)
            if nodes not in known:
                known[nodes] = expanded(nodes, self._ask)
            jobs.append(RunningJob(number, user, known[nodes], _seconds(end)))
        return jobs

    def reserve(self, request: Reserve) -> None:
        """Make a reservation."""
        times = f"StartTime={_start(request.start)}", f"EndTime={_text(request.end)}"
        name, nodes = f"ReservationName={request.name}", f"Nodes={request.node}"
        self._ask("scontrol", "create", "reservation", name, *times, nodes, "Users=root", f"Flags={_FLAGS}")

    def move(self, request: Move) -> None:
        """Give a reservation other times."""
        start = [f"StartTime={_start(request.start)}"] if request.start is not None else []
        self._ask(
            "scontrol",
            "update",
            "reservation",
            f"ReservationName={request.name}",
            *start,
            f"EndTime={_text(request.end)}",
        )

    def delete(self, name: str) -> None:
        """Delete a reservation. One that is gone is not an error."""
        try:
            self._ask("scontrol", "delete", f"ReservationName={name}")
        except Failed as error:
            if "Requested reservation is invalid" not in error.message and "does not exist" not in error.message:
                raise

    def notify(self, job: str, text: str) -> None:
        """Write a line into the output of a job."""
        self._ask("scontrol", "notify", job, text)


def uses(nodes: Mapping[str, SchedulerNode]) -> dict[str, NodeUse]:
    """What counts of the nodes, from the health service's view of them."""
    return {name: NodeUse(node.pool, in_service=node.free and "IDLE" in node.flags) for name, node in nodes.items()}


def _start(when: float) -> str:
    """A time for Slurm, which refuses one that has passed."""
    return _text(when) if when > time.time() + 1 else "now"


def _text(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))


def _seconds(text: str) -> float:
    """A time of Slurm; infinite where it has none (a job without a limit)."""
    when = moment(text)
    return math.inf if when is None else when
