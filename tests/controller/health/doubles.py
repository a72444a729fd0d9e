"""A double of Slurm for the health service: nodes that are drained, undrained and rebooted in memory.

It does not prove how slurmctld answers; the end-to-end tests (`test_people.py`, `test_main_path.py`) have a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpucluster.controller.health.policy import Moment, SchedulerNode
from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status
from gpucluster.node_agent.errors import Failed

DRAINS = frozenset({"disk", "gpu"})
IDLE = frozenset({"IDLE"})
NOW = Moment(1_000_000.0, "boot", 100_000.0)


def ago(seconds: float) -> Moment:
    """A moment of the same boot, these seconds before `NOW`."""
    return Moment(NOW.wall - seconds, NOW.boot, NOW.up - seconds)


@dataclass
class SlurmDouble:
    """`killed` stops the process before ("before") or after ("after") the next change."""

    state: dict[str, SchedulerNode]
    where: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, ...]] = field(default_factory=list)
    killed: str = ""
    down: bool = False

    def nodes(self, *names: str) -> dict[str, SchedulerNode]:
        if self.down:
            raise Failed("slurmctld does not answer")
        return {name: node for name, node in self.state.items() if not names or name in names}

    def addresses(self) -> Mapping[str, str]:
        if self.down:
            raise Failed("slurmctld does not answer")
        return self.where

    def drain(self, node: str, reason: str) -> None:
        self._change(("drain", node, reason))

    def undrain(self, node: str) -> None:
        self._change(("undrain", node, ""))

    def reboot(self, node: str) -> None:
        self._change(("reboot", node, ""))

    def _change(self, change: tuple[str, str, str]) -> None:
        if self.killed == "before":
            raise KilledError
        verb, name, reason = change
        node = self.state[name]
        if verb == "reboot":
            # As slurmctld shows it: the base state is DOWN until the node has registered again.
            flags = node.flags - IDLE | {"DOWN", "REBOOT_ISSUED"}
            reason = f"{node.reason} : reboot issued"
        else:
            flags = node.flags | {"DRAIN"} if verb == "drain" else node.flags - {"DRAIN"}
        self.state[name] = replace(node, flags=flags, reason=reason)
        self.changes.append(change)
        if self.killed == "after":
            raise KilledError


class KilledError(BaseException):
    """kill -9 at this point."""


@dataclass
class ControllerClock:
    """The controller's time: the wall clock, its boot, and the time since then. Each look takes a millisecond."""

    wall: float = 1_000_000.0
    up: float = 1000.0
    boot: str = "boot-1"

    def __call__(self) -> Moment:
        self.pass_(0.001)
        return Moment(self.wall, self.boot, self.up)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds


def nodes(count: int, pool: str = "compute", flags: frozenset[str] = IDLE) -> dict[str, SchedulerNode]:
    return {f"{pool}-{number}": SchedulerNode(f"{pool}-{number}", pool, flags) for number in range(1, count + 1)}


def report(
    host: str,
    results: Mapping[str, Status] | Iterable[tuple[str, Status]],
    profile: Profile = Profile.PERIODIC,
    boot: str = "node-boot",
) -> HostReport:
    found = tuple(Finding(check, host, status, f"{check} is {status.value}") for check, status in dict(results).items())
    return HostReport(host, profile, 5.0, 0.1, boot, found)
