"""What is paid for a host, for the records from which cost is counted. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster import shapes
from gpucluster.cloud.members import PoolMember
from gpucluster.handover.outputs import Outputs
from gpucluster.node_agent.rules import mig
from gpucluster.spec import ClusterSpec, PoolSpec
from gpucluster.spec.sections.machines import Machine


def billed_machine(machine: Machine) -> dict[str, Any]:
    """What is sold of a machine, and of a node what Slurm counts: processors, memory in MiB, GPUs or parts of them."""
    shape = shapes.get(machine.shape)
    sold = {
        "shape": machine.shape,
        "gpus": shape.gpus,
        "ocpus": machine.ocpus or (shape.sockets or 0) * (shape.cores_per_socket or 0),
        "memory_gb": machine.memory_gb or shape.memory_gib or 0,
    }
    if not isinstance(machine, PoolSpec):
        return sold
    smt = machine.platform.smt is not False
    node = shapes.slurm_node(shape, ocpus=machine.ocpus, memory_gb=machine.memory_gb, smt=smt)
    processors = math.prod(int(node[name] or 0) for name in ("Sockets", "CoresPerSocket", "ThreadsPerCore"))
    devices = len(mig.devices(machine.mig_parts, shape.gres_type or "")) or shape.gpus
    sold |= {"preemptible": True} if machine.preemptible else {}
    return {**sold, "cpus": processors, "memory_mib": node["RealMemory"], "devices": devices}


def billed_hosts(
    spec: ClusterSpec, outputs: Outputs, members: Mapping[str, Sequence[PoolMember]]
) -> list[dict[str, Any]]:
    """The permanent hosts: id, name, pool and machine of each."""
    of_kind: list[tuple[str, Machine, Sequence[PoolMember]]] = [
        ("controller", spec.controller, [outputs.controller, *filter(None, [outputs.standby])]),
        ("login", spec.login, outputs.login),
        *((name, spec.pools[name], nodes) for name, nodes in members.items()),
    ]
    return [
        {"id": host.id, "name": host.name, "pool": pool, "machine": billed_machine(machine)}
        for pool, machine, hosts in of_kind
        for host in hosts
    ]
