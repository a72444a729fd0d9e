"""The slurm role's own templates, filled in the way Ansible fills them in, without a host and without a playbook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from gpucluster import shapes
from gpucluster.paths import ansible_dir

CONTROLLER = "controller"
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
    system: str = "Debian-13",
    directories: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """slurm.conf, gres.conf and cgroup.conf of a controller with these pools, without accounting."""
    role = ansible_dir() / "roles" / "slurm"
    variables: dict[str, Any] = {}
    for file in (
        role / "defaults" / "main.yml",
        ansible_dir() / "vars" / "os" / f"{system}.yml",
        role / "vars" / "main.yml",
    ):
        variables |= yaml.safe_load(file.read_text())
    nodes = [node for one in pools for node in one["nodes"]]
    variables["os_slurm"] |= directories or {}
    variables |= {
        "inventory_hostname": CONTROLLER,
        "groups": {"controller": [CONTROLLER], "compute": nodes},
        "hostvars": {
            CONTROLLER: {"slurm_version_said": {"stdout": f"slurm {VERSION}"}, "ansible_facts": {}},
            **{node: {"ansible_facts": {}} for node in nodes},
        },
        "gpucluster_hosts": [{"name": CONTROLLER, "address": ADDRESS}],
        "gpucluster_name": "shapes",
        "slurm_cluster_name": "shapes",
        "slurm_accounting": False,
        "slurm_extra_config": dict(extra_config or {}),
        "slurm_default_partition": pools[0]["name"],
        "slurm_pools": list(pools),
        "slurm_hardware_emulated": emulated,
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    templar.environment.loader.searchpath = [str(role / "templates")]
    # As the template module sets them.
    templar.environment.trim_blocks, templar.environment.lstrip_blocks = True, False
    return {
        name: str(templar.do_template((role / "templates" / f"{name}.j2").read_text(), preserve_trailing_newlines=True))
        for name in ("slurm.conf", "gres.conf", "cgroup.conf")
    }
