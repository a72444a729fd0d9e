"""Measurements of a healthy node with eight H200, and what is expected of it. The GPUs' are real outputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.collect.gpu import parse_nvidia_smi, parse_nvlink
from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.rdma import LIMITS
from gpucluster.node_agent.checks.model import Finding, evaluate
from gpucluster.node_agent.mig.collect import Card

DATA = Path(__file__).parent / "data"
XML = (DATA / "nvidia-smi-q-x.xml").read_text()
DEVICES = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")

NODE = NodeExpectation(
    shape="BM.GPU.H200.8",
    hardware_emulated=False,
    gpus_emulated=False,
    gpus=8,
    gpu_vendor="nvidia",
    gpu_model="h200",
    gpu_device_files=tuple(f"/dev/nvidia{index}" for index in range(8)),
    gpu_pcie_width=16,
    nvlinks=18,
    nvlink_gb_per_s=25,
    fabric_manager=True,
    dcgm=True,
    rdma_devices=DEVICES,
    rdma_link_gbps=400,
    drives=8,
    memory_mib=2_900_000,
    mounts=("/home", "/mnt/localdisk"),
    local_disk="/mnt/localdisk",
    services=("munge", "slurmd"),
    # As in a pool that divides other GPUs than these: the check is made, and each of these must be whole.
    mig=("",) * 8,
    off=(),
)
EMULATED = replace(NODE, hardware_emulated=True, gpus_emulated=True)
#: An instance of the local cloud with GPUs of the machine that runs it.
GIVEN = replace(NODE, hardware_emulated=True)

_PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "pcie_width": "16",
    "pcie_max_width": "16",
}
_DISK = {"bytes": 1 << 40, "free_bytes": 1 << 39, "inodes": 1 << 20, "free_inodes": 1 << 19, "read_only": False}


def _diagnosis(**tests: str) -> dict[str, Any]:
    """As DCGM 4 has it: a result for each GPU.

    Args:
        tests: the name of a test of each category.
    """
    return {
        "test_categories": [
            {
                "category": category,
                "tests": [
                    {
                        "name": name,
                        "results": [{"entity_group": "GPU", "entity_id": each, "status": "Pass"} for each in range(8)],
                        "test_summary": {"status": "Pass"},
                    }
                ],
            }
            for category, name in tests.items()
        ]
    }


_EIGHT = parse_nvidia_smi(XML)


def _links() -> dict[str, Any]:
    """Those of two real GPUs, four times."""
    texts = [(DATA / f"nvidia-smi-nvlink-{option}.txt").read_text() for option in "se"]
    two = parse_nvlink(texts[0], texts[1])
    return {f"GPU {index}": copy.deepcopy(two[f"GPU {index % 2}"]) for index in range(8)}


def healthy() -> dict[str, Any]:
    """Every measurement of the registry."""
    return {
        "clock": {"synchronised": True, "offset_s": 0.0001},
        "clock_jump": {"seconds": 0.002},
        "dcgm_short": _diagnosis(Deployment="software"),
        "dcgm_long": _diagnosis(Deployment="software", Hardware="memory", Stress="targeted_power"),
        "driver": {"loaded": "580.95.05", "library": "580.95.05", "on_disk": "580.95.05"},
        "drives": {f"nvme{index}": "live" for index in range(8)},
        "fabric_manager": "active",
        "failed_units": [],
        "gpu_device_files": dict.fromkeys(NODE.gpu_device_files, True),
        "kernel_log": {"covers_s": 90000.0, "whole": True, "xids": [], "sxids": [], "faults": []},
        "kernel_settings": {
            "numa_nodes": 2,
            "numa_balancing": "0",
            "command_line": ["root=LABEL=root", "iommu=pt"],
        },
        "leftovers": {"processes": 0, "users": [], "cpu_s": 0.0},
        "local_disk": dict(_DISK),
        "memory_mib": 3_000_000,
        "mig": {
            "cards": [Card(index, f"GPU-{index}", "Disabled", "Disabled", (), ()) for index in range(8)],
            "said": "",
        },
        "mounts": {path: {"mounted": True, "fault": ""} for path in NODE.mounts},
        "nvidia_smi": copy.deepcopy(_EIGHT),
        "nvlink": _links(),
        "pci_gpus": [{"address": f"0000:0{index}:00.0", "vendor": "nvidia", "lost": False} for index in range(8)],
        "rdma": {name: dict(_PORT) for name in DEVICES},
        "rdma_errors": {
            name: {"seconds": 3000.0, "since_boot": False, "grown": dict.fromkeys(LIMITS, 0)} for name in DEVICES
        },
        "root": dict(_DISK),
        "services": {"munge": "active", "slurmd": "active"},
    }


def judged(check: str, measurements: Mapping[str, Any], expected: NodeExpectation = NODE) -> Finding:
    """What a check of the registry reports."""
    return evaluate(registry.BY_NAME[check], "compute-1", measurements, expected)


def planted(measurement: str, *path: Any, value: Any) -> dict[str, Any]:
    """Healthy measurements with one value changed."""
    found = healthy()
    place = found
    for step in (measurement, *path)[:-1]:
        place = place[step]
    place[(measurement, *path)[-1]] = value
    return found
