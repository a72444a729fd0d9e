"""The lists of what Prometheus scrapes on hosts: one file for each exporter, which Prometheus reads when it changes.

Hosts that are always there are in the lists whether they answer or not: that they do not answer is what alerts are
for. An elastic node is in them while Slurm, or with Kubernetes the autoscaler, has it in service. While that does not
answer, the lists stay.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.monitor.settings import MonitorSettings, ScrapedHost
from gpucluster.controller.rules.slurm_nodes import POWER, NodeLine

_PREFIX, _SUFFIX = "targets-", ".json"


def elastic_hosts(settings: MonitorSettings, nodes: Iterable[NodeLine]) -> list[ScrapedHost]:
    """The elastic nodes in service, with the addresses that Slurm has for them. Pure.

    A node whose address Slurm does not know yet has its name there; Prometheus can't reach that.
    """
    permanent = {host.name for host in settings.hosts}
    pool_of = settings.pool_of()
    hosts = []
    for node in nodes:
        pool = settings.elastic.get(pool_of(node.name))
        if node.name in permanent or pool is None or node.flags & POWER or not _is_address(node.address):
            continue
        hosts.append(ScrapedHost(node.name, node.address, pool_of(node.name), pool.shape, pool.jobs))
    return hosts


#: What the autoscaler reports of elastic nodes with Kubernetes, and whether it has looked at all of them.
ELASTIC_NODES, HAS_LOOKED = "gpucluster_elastic_node_info", "gpucluster_last_success_timestamp > 0"


def of_series(nodes: Iterable[Mapping[str, Any]]) -> list[NodeLine]:
    """The nodes in the answer to `ELASTIC_NODES`. Pure."""
    labels = (each["labels"] for each in nodes)
    return [NodeLine(str(each.get("node", "")), frozenset(), str(each.get("address", ""))) for each in labels]


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def lists(
    settings: MonitorSettings,
    elastic: Iterable[ScrapedHost],
    listens: Callable[[str, int], bool] = lambda _address, _port: True,
) -> dict[str, str]:
    """File name -> content. Pure.

    Args:
        listens: whether a program listens at an address and a port; asked for optional jobs only.
    """
    hosts = [*settings.hosts, *elastic]
    return {
        f"{_PREFIX}{job}{_SUFFIX}": json.dumps(
            [
                {
                    "targets": [f"{host.address}:{port}"],
                    "labels": {"node": host.name, "pool": host.pool, "shape": host.shape},
                }
                for host in hosts
                if job in host.jobs and (job not in settings.optional or listens(host.address, port))
            ],
            indent=1,
        )
        + "\n"
        for job, port in settings.jobs.items()
    }


def write(folder: Path, content_by_name: Mapping[str, str]) -> None:
    """Make the folder's lists be these. Each is replaced as a whole, and only if it differs.

    Raises:
        OSError: one can't be written; it is as it was.
    """
    for name, content in content_by_name.items():
        file = folder / name
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if file.read_text() == content:
                continue
        new = folder / f".{name}.new"
        try:
            with new.open("w") as stream:
                os.fchmod(stream.fileno(), 0o644)
                stream.write(content)
            new.replace(file)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
    for file in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        if file.name not in content_by_name:
            file.unlink()


def remembered(folder: Path, settings: MonitorSettings) -> list[ScrapedHost]:
    """The elastic nodes in the lists as they are, for the time until Slurm answers."""
    pool_of = settings.pool_of()
    permanent = {host.name for host in settings.hosts}
    hosts: dict[str, ScrapedHost] = {}
    for file in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        groups: Any = []
        with contextlib.suppress(OSError, ValueError):
            groups = json.loads(file.read_text())
        for group in groups if isinstance(groups, list) else ():
            with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):
                name, address = str(group["labels"]["node"]), str(group["targets"][0]).rpartition(":")[0]
                pool = settings.elastic.get(pool_of(name))
                if pool is not None and name not in permanent and _is_address(address):
                    hosts[name] = ScrapedHost(name, address, pool_of(name), pool.shape, pool.jobs)
    return list(hosts.values())
