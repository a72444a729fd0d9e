"""Rules of machines and of a pool's nodes: what their shape can be given, how many there are, and their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count as numbers
from itertools import islice
from typing import Any

from gpucluster import shapes
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.images import check_image
from gpucluster.spec.wording import shown

#: So many names are shown in a hint.
_NAMES_SHOWN = 4


def check_machine(draft: Draft, path: Path, machine: Mapping[str, Any]) -> None:
    """Note every fault of shape and image of the controller or a pool."""
    check_image(draft, (*path, "image"), machine)
    name = machine.get("shape")
    if not isinstance(name, str):
        return
    shape = shapes.catalogue().get(name)
    if shape is None:
        near = shapes.suggestions(name)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(shapes.catalogue())}"
        draft.fault((*path, "shape"), f"unknown shape {shown(name)}", hint)
    elif shape.flex_limits is None:
        for key in ("ocpus", "memory_gb"):
            if machine.get(key) is not None:
                message = f"{name} has a fixed size; only flexible shapes take {key}"
                draft.fault((*path, key), message, "Delete the line", key=True)
    else:
        _flex(draft, path, machine, name, shape.flex_limits)


def check_nodes(draft: Draft, name: str, pool: Mapping[str, Any]) -> None:
    """Note every other fault of the nodes of the pool `name`."""
    path: Path = ("pools", name)
    _counts(draft, path, pool)
    _removed_nodes(draft, name, pool)
    shape = _shape(pool)
    if shape is not None:
        _rdma(draft, path, pool, shape)
        _platform(draft, (*path, "platform"), pool.get("platform"), shape)


def has_rdma(pool: Any) -> bool:
    """Whether the nodes of a pool stand in an RDMA network, as far as it is fit to tell."""
    shape = _shape(pool) if isinstance(pool, dict) else None
    return shape is not None and shape.rdma and pool.get("rdma") is not False


def rdma_interfaces(shape: str) -> tuple[str, ...]:
    """The network interfaces of the RDMA devices of a known shape; empty where their names are not known."""
    return shapes.get(shape).rdma_interfaces


def _shape(pool: Mapping[str, Any]) -> shapes.Shape | None:
    name = pool.get("shape")
    return shapes.catalogue().get(name) if isinstance(name, str) else None


def _flex(draft: Draft, path: Path, machine: Mapping[str, Any], name: str, limits: shapes.Flex) -> None:
    ocpus, memory = machine.get("ocpus"), machine.get("memory_gb")
    for key, example in (("ocpus", 4), ("memory_gb", 32)):
        if key in machine and machine[key] is None:
            draft.fault((*path, key), f"is missing: {name} is a flexible shape", f"Add `{key}: {example}`")
    if isinstance(ocpus, int) and ocpus > limits.ocpus_max:
        draft.fault((*path, "ocpus"), f"{name} has at most {limits.ocpus_max} OCPUs; got {ocpus}")
    elif isinstance(ocpus, int) and isinstance(memory, int):
        most = min(limits.memory_gb_max, ocpus * limits.memory_gb_per_ocpu_max)
        if not ocpus <= memory <= most:
            message = f"{name} with {ocpus} OCPUs takes {ocpus} to {most} GB; got {memory}"
            draft.fault((*path, "memory_gb"), message)


def _counts(draft: Draft, path: Path, pool: Mapping[str, Any]) -> None:
    count, most = pool.get("count"), pool.get("max_count")
    if not isinstance(count, int) or not isinstance(most, int):
        return
    if most < count:
        draft.fault((*path, "max_count"), f"is below count: {most} < {count}", f"Write at least {count}")
    elif most == 0:
        draft.fault((*path, "count"), "the pool has no nodes", "Set count, or max_count for nodes on demand")


def _removed_nodes(draft: Draft, name: str, pool: Mapping[str, Any]) -> None:
    removed = pool.get("removed_nodes")
    if not isinstance(removed, tuple):
        return
    first: dict[str, int] = {}
    for index, node in enumerate(removed):
        path: Path = ("pools", name, "removed_nodes", index)
        if not isinstance(node, str):
            continue
        if not re.fullmatch(rf"{re.escape(name)}-[1-9][0-9]{{0,5}}", node):
            message = f"is no permanent node of the pool {name}: {shown(node)}"
            draft.fault(path, message, _names_hint(name, pool, removed))
        elif node in first:
            draft.fault(path, f"stands twice: {shown(node)}", "Keep one")
        first.setdefault(node, index)


def _names_hint(name: str, pool: Mapping[str, Any], removed: tuple[Any, ...]) -> str:
    count = pool.get("count")
    if not isinstance(count, int) or count < 1:
        return f"Their names are {name}-1, {name}-2 and so on"
    named = (f"{name}-{number}" for number in numbers(1))
    present = list(islice((node for node in named if node not in removed), min(count, _NAMES_SHOWN)))
    more = f" and {count - _NAMES_SHOWN} more" if count > _NAMES_SHOWN else ""
    return f"The pool has {', '.join(present)}{more}"


def _rdma(draft: Draft, path: Path, pool: Mapping[str, Any], shape: shapes.Shape) -> None:
    wanted, addressing = pool.get("rdma"), (*path, "rdma_addressing")
    if wanted is True and not shape.rdma:
        draft.fault((*path, "rdma"), f"{shape.name} has no RDMA", "Delete the line, or take a shape with RDMA")
    if pool.get("rdma_addressing") != "cloud-init":
        return
    if not shape.rdma or wanted is False:
        why = "with rdma false" if shape.rdma else f"for {shape.name}, which has no RDMA"
        draft.fault(addressing, f"has no meaning {why}", "Delete the line", key=True)
    elif not rdma_interfaces(shape.name):
        message = f"the names of the RDMA interfaces of {shape.name} are not known"
        draft.fault(addressing, message, "Write plugin, and take an image with the Oracle Cloud Agent")


def _platform(draft: Draft, path: Path, platform: Any, shape: shapes.Shape) -> None:
    if not isinstance(platform, dict):
        return
    said = [key for key, value in platform.items() if value is not None]
    if said and shape.platform_config_type is None:
        message = f"{shape.name} has no settings of its firmware; bare metal has"
        draft.fault((*path, said[0]), message, "Delete the line", key=True)
    elif platform.get("smt") is True and shape.threads_per_core == 1:
        draft.fault((*path, "smt"), f"{shape.name} has one thread for each core", "Delete the line")
