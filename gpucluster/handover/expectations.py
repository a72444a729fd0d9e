"""What each host should have, for the checks on it: the variable `node_expectation` of Ansible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucluster import shapes
from gpucluster.node_agent.checks.expected import IMEX, NodeExpectation
from gpucluster.node_agent.rules.mig import gpu_links
from gpucluster.spec import ClusterSpec, ControllerSpec, LoginSpec, PoolSpec


def node_expectation(
    spec: ClusterSpec,
    machine: ControllerSpec | LoginSpec | PoolSpec,
    *,
    hardware_emulated: bool,
    off: Sequence[str] = (),
    group: str = "",
) -> dict[str, Any]:
    """The expectation of the controller, the login nodes, or the nodes of a pool.

    A role writes it to `expected.PATH` as JSON, unchanged. Only nodes have it checked what hardware they have: the
    other hosts are not worth a verdict on their drives.

    Args:
        hardware_emulated: hosts have less hardware than their shape has (the local cloud).
        off: checks that cluster.yml switches off.
        group: which hosts they are, as `hosts` of a share names them.
    """
    pool = machine if isinstance(machine, PoolSpec) else None
    shape = shapes.get(machine.shape)
    gpus = shape.gpus if pool else 0
    nvidia = bool(gpus) and shape.has_nvidia_gpus
    # A pod that has an RDMA device takes it away from the host, so that a missing one is not a fault there.
    in_pods = spec.scheduler == "kubernetes" and spec.kubernetes.rdma == "device"
    rdma = pool is not None and pool.uses_rdma and not in_pods
    disk = spec.storage.local_disk
    local_disk = disk.mount_path if disk.enabled and shape.nvme_count and not hardware_emulated else ""
    home = [spec.storage.home.mount_path] if spec.storage.home.enabled else []
    shares = [share.mount_path for share in spec.storage.shares.values() if share.is_mounted_by(group)]
    return NodeExpectation(
        shape=machine.shape,
        hardware_emulated=hardware_emulated,
        gpus_emulated=hardware_emulated and not spec.cloud.real_gpus,
        gpus=gpus,
        gpu_vendor=shape.gpu_vendor if gpus else "",
        gpu_model=(shape.gres_type or "") if gpus else "",
        gpu_device_files=(gpu_links(gpus) if spec.cloud.real_gpus else shape.gpu_device_files) if gpus else (),
        gpu_pcie_width=shapes.GPU_PCIE_WIDTH if gpus else 0,
        nvlinks=shape.nvlinks if nvidia else 0,
        nvlink_gb_per_s=shape.nvlink_gb_per_s if nvidia else 0,
        fabric_manager=nvidia and shape.fabric_manager,
        # An instance that has GPUs of a machine has what the machine gives with them: no DCGM.
        dcgm=nvidia and bool(spec.nvidia.dcgm) and not spec.cloud.real_gpus,
        rdma_devices=shape.rdma_devices if rdma else (),
        rdma_link_gbps=(shape.rdma_link_gbps or 0) if rdma else 0,
        drives=shape.nvme_count if pool else 0,
        memory_mib=_memory_mib(pool) if pool else 0,
        mounts=(*home, *shares, *([local_disk] if local_disk else [])),
        local_disk=local_disk,
        services=(*_services(spec, machine), *([IMEX] if _has_imex(machine, hardware_emulated) else [])),
        mig=pool.mig_parts if pool else (),
        off=tuple(off),
    ).to_dict()


def _memory_mib(pool: PoolSpec) -> int:
    """What Slurm gives to jobs: with less, Slurm drains the node itself."""
    shape = pool.hardware
    memory_mib = pool.memory_gb * shapes.MIB_PER_GIB if shape.flex and pool.memory_gb else shape.memory_mib
    return shapes.real_memory_mib(memory_mib) if memory_mib else 0


def _has_imex(machine: ControllerSpec | LoginSpec | PoolSpec, hardware_emulated: bool) -> bool:
    return isinstance(machine, PoolSpec) and machine.hardware.memory_fabric and not hardware_emulated


def _services(spec: ClusterSpec, machine: ControllerSpec | LoginSpec | PoolSpec) -> tuple[str, ...]:
    if spec.scheduler == "kubernetes" and not isinstance(machine, LoginSpec):
        # Where Oracle runs the control plane, the controller is not a node.
        is_node = isinstance(machine, PoolSpec) or spec.kubernetes.control_plane == "self"
        return ("containerd", "kubelet") if is_node else ()
    if not spec.slurm.enabled:
        return ()
    if isinstance(machine, PoolSpec):
        return ("munge", "slurmd")
    if isinstance(machine, LoginSpec):
        return ("munge",)
    return ("munge", "slurmctld", *(["slurmdbd"] if spec.slurm.accounting else []))
