"""Rules of the nodes of a pool: how many there are, their names, RDMA and firmware settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count as numbers
from itertools import islice
from typing import Any

from gpucluster import shapes
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable

#: How many names a hint shows.
_NAMES_SHOWN = 4


def check_nodes(context: RuleContext, name: str, pool: Mapping[str, Any]) -> None:
    """Add every error of the nodes of the pool `name`."""
    path: Path = ("pools", name)
    _check_counts(context, path, pool)
    _check_removed_nodes(context, name, pool)
    shape = _shape(pool)
    if shape is not None:
        _check_rdma(context, path, pool, shape)
        _check_platform(context, (*path, "platform"), pool.get("platform"), shape)
        _check_memory_fabric(context, path, pool, shape)
    if pool.get("preemptible") is True:
        _check_preemptible(context, (*path, "preemptible"), pool, shape)


def has_rdma(pool: Any) -> bool:
    """Whether the nodes of a pool are in an RDMA network; False where its shape is invalid."""
    shape = _shape(pool) if isinstance(pool, dict) else None
    return shape is not None and shape.rdma and pool.get("rdma") is not False


def rdma_interfaces(shape: str) -> tuple[str, ...]:
    """The network interfaces of the RDMA devices of a known shape; empty if their names are not known."""
    return shapes.get(shape).rdma_interfaces


def _shape(pool: Mapping[str, Any]) -> shapes.Shape | None:
    name = pool.get("shape")
    return shapes.catalogue().get(name) if isinstance(name, str) else None


def _check_counts(context: RuleContext, path: Path, pool: Mapping[str, Any]) -> None:
    count, most = pool.get("count"), pool.get("max_count")
    if not isinstance(count, int) or not isinstance(most, int):
        return
    if most < count:
        context.error((*path, "max_count"), f"is below count: {most} < {count}", f"Write at least {count}")
    elif most == 0:
        context.error((*path, "count"), "the pool has no nodes", "Set count, or max_count for elastic nodes")


def _check_removed_nodes(context: RuleContext, name: str, pool: Mapping[str, Any]) -> None:
    removed = pool.get("removed_nodes")
    if not isinstance(removed, tuple):
        return
    first: dict[str, int] = {}
    for index, node in usable(removed):
        path: Path = ("pools", name, "removed_nodes", index)
        if not isinstance(node, str):
            continue
        if not re.fullmatch(rf"{re.escape(name)}-[1-9][0-9]{{0,5}}", node):
            message = f"is not a permanent node of the pool {name}: {shown(node)}"
            context.error(path, message, _names_hint(name, pool, removed))
        elif node in first:
            context.error(path, f"occurs twice: {shown(node)}", "Keep one")
        first.setdefault(node, index)


def _names_hint(name: str, pool: Mapping[str, Any], removed: tuple[Any, ...]) -> str:
    count = pool.get("count")
    if not isinstance(count, int) or count < 1:
        return f"Their names are {name}-1, {name}-2 and so on"
    named = (f"{name}-{number}" for number in numbers(1))
    present = list(islice((node for node in named if node not in removed), min(count, _NAMES_SHOWN)))
    more = f" and {count - _NAMES_SHOWN} more" if count > _NAMES_SHOWN else ""
    return f"The pool has {', '.join(present)}{more}"


def _check_rdma(context: RuleContext, path: Path, pool: Mapping[str, Any], shape: shapes.Shape) -> None:
    desired, addressing = pool.get("rdma"), (*path, "rdma_addressing")
    if desired is True and not shape.rdma:
        context.error((*path, "rdma"), f"{shape.name} has no RDMA", "Delete the line, or use a shape with RDMA")
    if pool.get("rdma_addressing") != "cloud-init":
        return
    if not shape.rdma or desired is False:
        why = "with rdma false" if shape.rdma else f"for {shape.name}, which has no RDMA"
        context.error(addressing, f"has no meaning {why}", "Delete the line", key=True)
    elif not rdma_interfaces(shape.name):
        message = f"the names of the RDMA interfaces of {shape.name} are not known"
        context.error(addressing, message, "Write plugin, and use an image with the Oracle Cloud Agent")


def _check_memory_fabric(context: RuleContext, path: Path, pool: Mapping[str, Any], shape: shapes.Shape) -> None:
    """What a pool needs whose hosts share an NVLink fabric, and what OCI excludes for it (docs: "Creating GPU Memory
    Clusters")."""
    fabric = pool.get("memory_fabric_id")
    if not shape.memory_fabric:
        if fabric is not None:
            message = f"has no meaning for {shape.name}, whose hosts share no NVLink fabric"
            context.error((*path, "memory_fabric_id"), message, "Delete the line", key=True)
        return
    if fabric is None and not context.written((*path, "memory_fabric_id")):
        message = f"is missing: OCI launches {shape.name} on the hosts of one GPU memory fabric"
        hint = (
            "Write its OCID. Those of your tenancy: oci compute compute-gpu-memory-fabric list --compartment-id TENANCY"
        )
        context.error((*path, "memory_fabric_id"), message, hint)
    if context.data.get("scheduler", "slurm") == "kubernetes":
        message = f"with Kubernetes, {shape.name} can't be used: nothing gives pods the channels of its NVLink fabric"
        context.error((*path, "shape"), message, "Use `scheduler: slurm`, or another shape, such as BM.GPU.B200.8")
    count, most = pool.get("count"), pool.get("max_count")
    if isinstance(count, int) and isinstance(most, int) and most > count:
        message = f"OCI has no elastic nodes of {shape.name}: its hosts are launched together, in one rack"
        context.error((*path, "max_count"), message, "Write the number of nodes as count, and delete max_count")
    if isinstance(count, int) and count > shapes.MEMORY_FABRIC_HOSTS:
        message = f"a rack of {shape.name} has {shapes.MEMORY_FABRIC_HOSTS} hosts, and a pool is one rack; got {count}"
        context.error((*path, "count"), message, "Make a pool of each rack; pools may share a partition")
    if pool.get("rdma") is False:
        message = f"{shape.name} is always in a compute cluster, which is an RDMA network"
        context.error((*path, "rdma"), message, "Delete the line")
    if pool.get("capacity_reservation_id"):
        message = f"the hosts of {shape.name} are those of its memory fabric: no reservation has them"
        context.error((*path, "capacity_reservation_id"), message, "Delete the line")


def _check_preemptible(context: RuleContext, path: Path, pool: Mapping[str, Any], shape: shapes.Shape | None) -> None:
    """What OCI's preemptible capacity excludes (docs: "Preemptible Instances"), and what gpucluster launches as such.

    The cloud ends permanent nodes, too, but only the autoscaler launches others for them.
    """
    if shape is not None and not shape.name.startswith("VM."):
        context.error(path, f"{shape.name} is bare metal, and OCI has no preemptible bare metal", "Use a VM shape")
    if pool.get("managed") is True:
        context.error(path, "has no meaning with managed: OKE launches the nodes", "Delete one of the two lines")
    elif pool.get("count"):
        message = "needs count: 0, because the nodes that OCI ends are launched again only where they are elastic"
        context.error(path, message, "Write the number of nodes as max_count, and count: 0")
    if pool.get("capacity_reservation_id"):
        message = "preemptible capacity is not taken from a reservation: capacity_reservation_id is set"
        context.error(path, message, "Delete one of the two lines")


def _check_platform(context: RuleContext, path: Path, platform: Any, shape: shapes.Shape) -> None:
    if not isinstance(platform, dict):
        return
    keys = [key for key, value in platform.items() if value is not None]
    if keys and shape.platform_config_type is None:
        message = f"{shape.name} has no firmware settings; only bare metal has"
        context.error((*path, keys[0]), message, "Delete the line", key=True)
    elif platform.get("smt") is True and shape.threads_per_core == 1:
        context.error((*path, "smt"), f"{shape.name} has one thread per core", "Delete the line")
