"""The settings of the health service on the controller: a file that the role `health` writes. No secret is in it."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.controller.health import policy
from gpucluster.controller.maintenance.policy import MaintenanceSettings
from gpucluster.controller.reactions import policy as reactions
from gpucluster.controller.rules import pool_names
from gpucluster.node_agent.errors import Failed

FILE = Path("/etc/gpucluster/health.json")


@dataclass(frozen=True)
class HealthSettings:
    """Settings.

    Args:
        slurm: whether the cluster has Slurm.
        kubernetes: whether it has Kubernetes. Without both reports are kept, and nothing is drained.
        interval: seconds between two periodic reports of a node.
        networks: those of the cluster: no other host gets an answer.
        hosts: the names of permanent hosts by their addresses.
        pools: the permanent nodes of each pool; elastic: the names of its elastic ones, `gpu-e[1-6]`.
        reactions: what follows when jobs are hung or idle; None: nothing, because jobs are not watched.
        maintenance: what follows from maintenance that Oracle announces; None: no service reads the events.
        reboots: whether nodes are rebooted where that may fix them. Only with Slurm.
    """

    slurm: bool
    interval: float
    max_drained_percent: int
    shadow: bool
    networks: tuple[str, ...]
    hosts: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    elastic: Mapping[str, str] = field(default_factory=dict)
    kubernetes: bool = False
    reactions: reactions.ReactionSettings | None = None
    maintenance: MaintenanceSettings | None = None
    reboots: bool = False

    @classmethod
    def load(cls, file: Path = FILE) -> HealthSettings:
        """Read the file.

        Raises:
            Failed: it is not there, or not what the role writes.
        """
        try:
            raw = json.loads(file.read_text())
            return cls(
                slurm=bool(raw["slurm"]),
                interval=float(raw["interval"]),
                max_drained_percent=int(raw["max_drained_percent"]),
                shadow=bool(raw["shadow"]),
                networks=tuple(str(ipaddress.ip_network(each)) for each in raw["networks"]),
                hosts={str(address): str(name) for address, name in raw["hosts"].items()},
                pools={str(pool): tuple(each["nodes"]) for pool, each in raw["pools"].items()},
                elastic={str(pool): str(each["elastic"]) for pool, each in raw["pools"].items() if each["elastic"]},
                kubernetes=bool(raw.get("kubernetes", False)),
                reactions=_reactions(raw.get("reactions"), shadow=bool(raw["shadow"])),
                maintenance=_maintenance(raw),
                reboots=bool(raw["slurm"]) and bool(raw.get("reboots", False)),
            )
        except FileNotFoundError:
            raise Failed(
                f"there is no {file}: this host is not a controller with checks", "Run: gpucluster apply"
            ) from None
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"{file} can't be read: {error}", "Run: gpucluster apply") from error

    @property
    def policy(self) -> policy.PolicySettings:
        """Those of the policy."""
        return policy.PolicySettings(self.max_drained_percent, self.shadow, self.reboots)

    def allows(self, address: str) -> bool:
        """Whether an address is that of a host, or in one of the cluster's networks."""
        if address in self.hosts:
            return True
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in ipaddress.ip_network(network) for network in self.networks)

    def pool_of(self, node: str) -> str:
        """The pool of a node; empty if it belongs to none."""
        for pool, nodes in self.pools.items():
            if node in nodes:
                return pool
        return self.elastic_pool_of(node)

    def elastic_pool_of(self, node: str) -> str:
        """The pool of an elastic node; empty if this is not the name of one."""
        return pool_names.elastic_pool_of(self.elastic, node)


def _reactions(raw: Any, *, shadow: bool) -> reactions.ReactionSettings | None:
    if raw is None:
        return None
    end = raw["end_idle_seconds"]
    choices = {str(name): reactions.Choice(each) for name, each in raw["partitions"].items()}
    return reactions.ReactionSettings(
        reactions.Choice(raw["on_hang"]), choices, None if end is None else float(end), shadow=shadow
    )


def _maintenance(raw: Mapping[str, Any]) -> MaintenanceSettings | None:
    settings = raw.get("maintenance")
    if settings is None or not raw["slurm"]:
        return None
    return MaintenanceSettings(bool(settings["early"]), int(raw["max_drained_percent"]), bool(raw["shadow"]))
