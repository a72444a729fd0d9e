"""Slurm's files for the catalogue's shapes, from the role's own templates (see tests/ansible/render.py)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster import shapes
from tests.ansible import render as role
from tests.ansible.render import CONTROLLER
from tests.containers import base_image, of_this_run

__all__ = ["ADDRESS", "CONTROLLER", "SHARED_MACHINE", "VERSION", "in_container", "pool", "render"]

ADDRESS = "192.0.2.1"
VERSION = "24.11.5"
FILES = ("slurm.conf", "gres.conf", "cgroup.conf", "mpi.conf", "topology.conf")
#: Daemons and commands wait for each other as long as Slurm allows: on a busy machine one may stand still for a minute.
PATIENT = {"MessageTimeout": "100", "UnkillableStepTimeout": "600", "AuthInfo": "cred_expire=120"}
#: What lets many slurmd share one machine; the rest of the configuration is as the role writes it.
SHARED_MACHINE = {
    **PATIENT,
    "CommunicationParameters": "NoInAddrAny",
    "SlurmdPidFile": "/run/slurmd-%n.pid",
    "SlurmdLogFile": "/var/log/slurmd-%n.log",
}


def pool(
    shape: shapes.Shape, nodes: Sequence[str], *, name: str = "", elastic_nodes: str = "", partition: str = ""
) -> dict[str, Any]:
    """One entry of slurm_pools; flexible shapes get 4 OCPUs and 32 GB."""
    name = name or nodes[0].rpartition("-")[0]
    return {
        "name": name,
        "elastic_nodes": elastic_nodes,
        "partition": partition or name,
        "rdma": bool(shape.rdma_devices),
        "memory_fabric": shape.memory_fabric,
        "login_user": "debian",
        "nodes": list(nodes),
        "node": shapes.slurm_node(shape, 4, 32),
        "gpus": shape.gpus,
        "gres_type": shape.gres_type,
        "gpu_vendor": shape.gpu_vendor if shape.gpus else None,
        "gpu_device_files": list(shape.gpu_device_files),
        "mig": [],
        "default": False,
        "idle_timeout": 600,
    }


def render(
    pools: Sequence[Mapping[str, Any]],
    *,
    emulated: bool,
    extra_config: Mapping[str, Any] | None = None,
    directories: Mapping[str, str] | None = None,
    idle_timeout: int = 600,
    power: Mapping[str, int] | None = None,
    version: str = VERSION,
    checks: bool = True,
    whole_nodes: Collection[str] = (),
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, str]:
    """Slurm's files of a controller with these pools, without accounting; with `power` also the lines of a shell.

    Args:
        checks: nodes check themselves, with programs that a real node has.
        whole_nodes: partitions whose jobs have their nodes for themselves.
        hosts: by node, what the metadata service reports of the place of its host.
    """
    names = list(dict.fromkeys(str(pool["partition"]) for pool in pools))
    partitions = []
    for name in names:
        members = [pool for pool in pools if pool["partition"] == name]
        partitions.append(
            {
                "name": name,
                "pools": [pool["name"] for pool in members],
                "default": name == names[0],
                "max_nodes": 4,
                "whole_nodes": name in whole_nodes,
                "idle_timeout": idle_timeout if any(pool["elastic_nodes"] for pool in members) else None,
            }
        )
    inventory = {
        "slurm_partitions": partitions,
        "slurm_power": power,
        "gpucluster_hosts": [{"name": CONTROLLER, "address": ADDRESS}],
        "gpucluster_name": "shapes",
        "slurm_cluster_name": "shapes",
        "slurm_accounting": False,
        "slurm_extra_config": dict(extra_config or {}),
        "slurm_default_partition": names[0],
        "slurm_pools": list(pools),
        "slurm_hardware_emulated": emulated,
        "slurm_gpus_emulated": emulated,
        "health_enabled": checks,
    }
    known = role.variables(inventory, role="slurm", facts=role.host_facts(slurm=version))
    known["os_slurm"] |= directories or {}
    for name, document in (hosts or {}).items():
        facts = role.host_facts(slurm=version) | {"rdma_host": document}
        known["hostvars"][name] = {"ansible_facts": {"gpucluster_host": facts}, "inventory_hostname": name}
    return {name: role.render("slurm", name, known) for name in (*FILES, *(("squeue.sh",) if power else ()))}


def in_container(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What slurm_in_container.py makes of a plan, in a container of the base image. Without containers: skipped."""
    from gpucluster.localcloud.podman.host import settings as host

    image = base_image()
    script = Path(__file__).with_name("slurm_in_container.py")
    waiting = Path(__file__).parents[1] / "waiting.py"
    seen = (f"--volume={waiting}:/opt/gpucluster-test/tests/waiting.py:ro", "--env=PYTHONPATH=/opt/gpucluster-test")
    options = (*host().run_options(), *seen, "--env=GPUCLUSTER_TEST_PATIENCE")
    argv = [
        *("podman", "--runtime", host().runtime, "run", "--rm", "--interactive", "--network=none"),
        *(f"--hostname={CONTROLLER}", of_this_run(), *options),
        *("--entrypoint=python3", image, "-c", script.read_text()),
    ]
    done = subprocess.run(argv, input=json.dumps(plan), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-9000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said
