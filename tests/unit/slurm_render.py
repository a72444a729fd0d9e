"""Slurm's files for the catalogue's shapes, from the role's own templates (see tests/ansible/render.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster import shapes
from tests.ansible import render as role
from tests.ansible.render import CONTROLLER

__all__ = ["ADDRESS", "CONTROLLER", "VERSION", "pool", "render"]

ADDRESS = "192.0.2.1"
VERSION = "24.11.5"


def pool(shape: shapes.Shape, nodes: Sequence[str], *, name: str = "") -> dict[str, Any]:
    """One entry of slurm_pools; flexible shapes get 4 OCPUs and 32 GB."""
    return {
        "name": name or nodes[0].rpartition("-")[0],
        "nodes": list(nodes),
        "node": shapes.slurm_node(shape, 4, 32),
        "gpus": shape.gpus,
        "gres_type": shape.gres_type,
        "gpu_device_files": list(shape.gpu_device_files),
        "default": False,
        "idle_timeout": 600,
    }


def render(
    pools: Sequence[Mapping[str, Any]],
    *,
    emulated: bool,
    extra_config: Mapping[str, Any] | None = None,
    directories: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """slurm.conf, gres.conf and cgroup.conf of a controller with these pools, without accounting."""
    inventory = {
        "gpucluster_hosts": [{"name": CONTROLLER, "address": ADDRESS}],
        "gpucluster_name": "shapes",
        "slurm_cluster_name": "shapes",
        "slurm_accounting": False,
        "slurm_extra_config": dict(extra_config or {}),
        "slurm_default_partition": pools[0]["name"],
        "slurm_pools": list(pools),
        "slurm_hardware_emulated": emulated,
    }
    known = role.variables(inventory, role="slurm", facts=role.host_facts(slurm=VERSION))
    known["os_slurm"] |= directories or {}
    return {name: role.render("slurm", name, known) for name in ("slurm.conf", "gres.conf", "cgroup.conf")}
