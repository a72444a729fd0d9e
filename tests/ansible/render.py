"""The templates of the roles, evaluated as Ansible does it, without a host and without a playbook."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from gpucluster.configuration import ansible_playbook
from tests.ansible.loading import ANSIBLE, read

# As in playbooks of ours, each text is compiled once: tests/configuration/test_ansible_playbook.py proves that it gives
# the same. The folder is removed at the end of this process.
_COMPILED = tempfile.TemporaryDirectory(prefix="compiled-templates-")
ansible_playbook.keep_templates(Path(_COMPILED.name))

CONTROLLER = "demo-controller"
NODES = ("compute-1", "compute-2")
SLURM_FILES = ("slurm.conf", "gres.conf", "cgroup.conf", "mpi.conf", "topology.conf", "slurmdbd.conf")

#: The inventory of the demo cluster as handover writes it: tests/golden/ proves that it does.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "local_demo" / "inventory.json").read_text())["all"]["vars"]

#: A pool of real hosts with GPUs and RDMA.
GPU_POOL: dict[str, Any] = {
    **GOLDEN["slurm_pools"][0],
    "node": {"Sockets": 2, "CoresPerSocket": 32, "ThreadsPerCore": 2, "RealMemory": 2000000, "Gres": "gpu:a100:8"},
    "nccl": {"NCCL_IB_GID_INDEX": "3"},
}
#: A pool without nodes, GPUs and RDMA.
EMPTY_POOL: dict[str, Any] = {
    **GPU_POOL,
    "name": "elastic",
    "partition": "elastic",
    "default": False,
    "nodes": [],
    "node": {"Sockets": 1, "CoresPerSocket": 4, "ThreadsPerCore": 2, "RealMemory": 30000, "Gres": None},
    "shape": "VM.Standard.E5.Flex",
    "nccl": {},
    "gpus": 0,
    "gres_type": None,
    "gpu_vendor": None,
    "gpu_device_files": [],
    "rdma": False,
}
#: The same inventory with these two pools, on hardware that is not emulated.
INVENTORY: dict[str, Any] = {
    **GOLDEN,
    "gpucluster_hosts": [
        {"name": CONTROLLER, "address": "10.0.0.2"},
        {"name": "compute-1", "address": "10.0.1.2"},
        {"name": "compute-2", "address": "10.0.1.3"},
    ],
    "home_server": "10.0.1.9",
    "slurm_pools": [GPU_POOL, EMPTY_POOL],
    "slurm_partitions": [
        {
            "name": "compute",
            "pools": ["compute"],
            "default": True,
            "whole_nodes": False,
            "max_nodes": 2,
            "idle_timeout": None,
        },
        {
            "name": "elastic",
            "pools": ["elastic"],
            "default": False,
            "whole_nodes": False,
            "max_nodes": 0,
            "idle_timeout": None,
        },
    ],
    "slurm_hardware_emulated": False,
    "slurm_gpus_emulated": False,
}
#: Two RDMA pools in one partition, and a pool without RDMA; all of them elastic.
ELASTIC: dict[str, Any] = {
    "slurm_pools": [
        GPU_POOL | {"elastic_nodes": "compute-e[1-6]"},
        GPU_POOL | {"name": "second", "nodes": [], "default": False, "elastic_nodes": "second-e[1-6]"},
        EMPTY_POOL | {"elastic_nodes": "elastic-e[1-4]"},
    ],
    "slurm_partitions": [
        {
            "name": "compute",
            "pools": ["compute", "second"],
            "default": True,
            "whole_nodes": False,
            "max_nodes": 4,
            "idle_timeout": 600,
        },
        {
            "name": "elastic",
            "pools": ["elastic"],
            "default": False,
            "whole_nodes": False,
            "max_nodes": 1,
            "idle_timeout": 60,
        },
    ],
    "slurm_power": {"resume_timeout": 1800, "suspend_timeout": 120, "max_powered_nodes": 7},
    "autoscaler_policy": {"version": 1, "cluster": "demo"},
    "autoscaler_wheels": "/somewhere/wheels",
    "autoscaler_maintenance": {"version": 1, "cluster": "demo"},
}


def host_facts(*, cgroups: bool = False, slurm: str = "24.11.5") -> dict[str, Any]:
    """The facts of gpucluster_host that templates use."""
    return {
        "system": "Debian-13",
        "kernel": "6.12.57+deb13-amd64",
        "container": "",
        "memory_mib": 64000,
        "cgroup": {"version": 2, "controllers": ["cpuset", "memory"] if cgroups else [], "usable": cgroups},
        "can_raise_limits": True,
        "can_set_time": True,
        "hard_limits": {"nofile": 4096, "memlock": None},
        "default_interface": "ens3",
        "resolver": "/run/systemd/resolve/resolv.conf",
        "ssh_host_keys": ["ssh-ed25519 AAAAhost"],
        "ssh_authority": "ssh-ed25519 AAAAauthority",
        "local_users": ["root", "debian", "alice", "admin2"],
        "slurm_version": slurm,
        "runtimes": [],
        "fuse": True,
        "container_demand": "",
        "nfs_homes_denied": False,
        "rdma_classes": ["infiniband_cm", "infiniband_mad", "infiniband_verbs"],
        "launch_keys": [],
        "user_home": "/home/debian",
        "user_group": "debian",
    }


def variables(
    inventory: Mapping[str, Any] | None = None,
    *,
    role: str,
    host: str = CONTROLLER,
    facts: Mapping[str, Any] | None = None,
    system: str = "Debian-13",
) -> dict[str, Any]:
    """All variables of a template of the role: inventory, defaults, facts, the data of the system."""
    known: dict[str, Any] = {}
    files = (
        f"roles/{role}/defaults/main.yml",
        f"vars/os/{system}.yml",
        "group_vars/all/cluster.yml",
        "group_vars/all/slurm.yml",
        f"roles/{role}/vars/main.yml",
    )
    for file in files:
        if (ANSIBLE / file).exists():
            known |= read(file)
    known |= INVENTORY | dict(inventory or {})
    seen = {"gpucluster_host": dict(facts or host_facts())}
    nodes = [node for pool in known["slurm_pools"] for node in pool["nodes"]]
    hosts = {name: {"ansible_facts": seen, "inventory_hostname": name} for name in (CONTROLLER, *nodes)}
    return known | {
        "ansible_facts": seen,
        "ansible_user": "debian",
        "groups": {"controller": [CONTROLLER], "compute": nodes, "all": list(hosts)},
        "hostvars": hosts,
        "inventory_hostname": host,
        "group_names": [],
    }


def trusted(value: Any) -> Any:
    """The value with every string in it marked as a trusted template, as Ansible marks what it reads from a role."""
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, Mapping):
        return {key: trusted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [trusted(inner) for inner in value]
    return value


def evaluate(template: Any, known: Mapping[str, Any]) -> Any:
    """Evaluate the templates in a value as Ansible does."""
    return Templar(loader=DataLoader(), variables=trusted(known)).template(trusted(template))


def render_file(file: Path, known: Mapping[str, Any]) -> str:
    """A template file; those beside it can be included. The options are those of Ansible's template module."""
    templar = Templar(loader=DataLoader(), variables=trusted(known)).copy_with_new_env(
        searchpath=[str(file.parent), str(ANSIBLE / "templates")]
    )
    options = {"trim_blocks": True, "lstrip_blocks": False}
    return str(templar.template(trusted(file.read_text()), escape_backslashes=False, overrides=options))


def render(role: str, template: str, known: Mapping[str, Any]) -> str:
    """One template of a role."""
    return render_file(ANSIBLE / "roles" / role / "templates" / f"{template}.j2", known)


def render_slurm(
    inventory: Mapping[str, Any] | None = None, *, facts: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Slurm's files by name, for variables of the inventory that differ from INVENTORY's."""
    known = variables(inventory, role="slurm", facts=facts)
    return {name: render("slurm", name, known) for name in SLURM_FILES}
