"""What the judges of a host's disks, memory, units and clock report of planted faults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Status
from tests.node_agent.checks.judges.results import FAIL, PASS, SKIP, WARN
from tests.node_agent.checks.measured import NODE, healthy, judged, planted


@pytest.mark.parametrize(
    ("check", "path", "value", "status"),
    [
        ("root_file_system", ("root", "read_only"), True, FAIL),
        ("root_file_system", ("root", "free_bytes"), 1 << 20, FAIL),
        ("root_file_system", ("root", "free_bytes"), 1 << 35, WARN),
        ("root_file_system", ("root", "free_inodes"), 0, FAIL),
        ("root_file_system", ("root", "inodes"), 0, PASS),  # xfs and btrfs make them when they are needed
        ("local_disk", ("local_disk", "free_bytes"), 0, WARN),
        ("local_disk", ("local_disk", "read_only"), True, FAIL),
        ("mounts", ("mounts", "/home", "mounted"), False, FAIL),
        ("memory", ("memory_mib",), 2_800_000, FAIL),
        ("kernel_settings", ("kernel_settings", "numa_balancing"), "1", WARN),
        # With the mode of tiers of memory, which is a bit of its own.
        ("kernel_settings", ("kernel_settings", "numa_balancing"), "2", WARN),
        ("kernel_settings", ("kernel_settings", "numa_balancing"), "", PASS),
        ("kernel_settings", ("kernel_settings", "command_line"), [], PASS),  # NVIDIA's GPUs
        ("drives", ("drives", "nvme3"), "dead", FAIL),
        ("services", ("services", "slurmd"), "failed", FAIL),
        ("services", ("services", "slurmd"), "activating", WARN),
        ("failed_units", ("failed_units",), ["a.service"], WARN),
        ("clock", ("clock", "synchronised"), False, WARN),
        ("clock", ("clock", "offset_s"), -3.5, WARN),
        ("clock", ("clock", "offset_s"), 90.0, FAIL),
        ("clock_jump", ("clock_jump", "seconds"), -3600.0, WARN),
        ("clock_jump", ("clock_jump", "seconds"), None, SKIP),
        ("leftover_processes", ("leftovers", "processes"), 3, WARN),
    ],
)
def test_planted_faults(check: str, path: tuple[Any, ...], value: Any, status: Status) -> None:
    found = judged(check, planted(*path, value=value))
    assert found.status is status, found


def test_amd_s_gpus_need_an_iommu_that_passes_through() -> None:
    amd = dataclasses.replace(NODE, gpu_vendor="amd")
    assert judged("kernel_settings", healthy(), amd).status is PASS
    others = planted("kernel_settings", "command_line", value=["amd_iommu=on", "iommu=ptx"])
    found = judged("kernel_settings", others, amd)
    assert (found.status, found.message) == (WARN, "the kernel's command line has no iommu=pt")
    assert found.evidence["iommu"] == ["amd_iommu=on", "iommu=ptx"]


def test_memory_that_is_in_one_place_is_not_moved() -> None:
    one = planted("kernel_settings", "numa_balancing", value="1")
    one["kernel_settings"]["numa_nodes"] = 1
    assert judged("kernel_settings", one).status is PASS
