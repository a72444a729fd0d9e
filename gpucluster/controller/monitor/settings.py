"""The settings of the monitor: a file that the role `monitoring` writes. No secret is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucluster.controller.rules import pool_names
from gpucluster.node_agent.errors import Failed

FILE = Path("/etc/gpucluster/monitor.json")
FOLDER = Path("/var/lib/gpucluster/monitor")
HOST, PORT = "127.0.0.1", 9341


@dataclass(frozen=True)
class ScrapedHost:
    """A host that is scraped.

    Args:
        pool: empty for the controller and login nodes.
        jobs: the names of what runs on it: keys of `Settings.jobs`.
    """

    name: str
    address: str
    pool: str
    shape: str
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class ElasticPool:
    """Nodes that come and go.

    Args:
        names: gpu-e[1-6].
    """

    names: str
    shape: str
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class MonitorSettings:
    """Settings.

    Args:
        slurm: whether the cluster has Slurm.
        interval: seconds between two queries of Slurm for jobs.
        jobs: what is scraped on hosts, with its port.
        hosts: those that are always there.
        elastic: by pool.
        optional: those of `jobs` that a host may lack: it is scraped if a program listens.
        autoscaler: whether the autoscaler's metrics list the elastic nodes. Else Slurm does.
    """

    slurm: bool
    interval: float
    jobs: Mapping[str, int]
    hosts: tuple[ScrapedHost, ...] = ()
    elastic: Mapping[str, ElasticPool] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    autoscaler: bool = False

    @classmethod
    def load(cls, file: Path = FILE) -> MonitorSettings:
        """Read the file.

        Raises:
            Failed: it is not there, or not what the role writes.
        """
        try:
            raw = json.loads(file.read_text())
            return cls(
                slurm=bool(raw["slurm"]),
                interval=float(raw["interval"]),
                jobs={str(name): int(port) for name, port in raw["jobs"].items()},
                hosts=tuple(
                    ScrapedHost(each["name"], each["address"], each["pool"], each["shape"], tuple(each["jobs"]))
                    for each in raw["hosts"]
                ),
                elastic={
                    str(pool): ElasticPool(each["names"], each["shape"], tuple(each["jobs"]))
                    for pool, each in raw["elastic"].items()
                },
                optional=frozenset(map(str, raw["optional"])),
                autoscaler=bool(raw.get("autoscaler", False)),
            )
        except FileNotFoundError:
            raise Failed(f"there is no {file}: this host does not monitor a cluster", "Run: gpucluster apply") from None
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"{file} can't be read: {error!r}", "Run: gpucluster apply") from error

    def pool_of(self) -> PoolOf:
        """A function from the name of a node to its pool."""
        return PoolOf(self)


class PoolOf:
    """The pool of a node, by its name; empty if it belongs to none. Answers are kept: ten thousand names are asked for
    again and again."""

    def __init__(self, settings: MonitorSettings) -> None:
        self._known = {host.name: host.pool for host in settings.hosts}
        self._elastic = {pool: each.names for pool, each in settings.elastic.items()}

    def __call__(self, node: str) -> str:
        """The pool of this node."""
        pool = self._known.get(node)
        if pool is None:
            pool = self._known[node] = pool_names.elastic_pool_of(self._elastic, node)
        return pool
