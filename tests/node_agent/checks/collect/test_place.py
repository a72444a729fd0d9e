"""Measurements on a tree of files like the kernel's: what is missing, and what no collector foresaw."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.checks.collect.place import MeasuredHost, boot_of, measure
from gpucluster.node_agent.checks.model import Missing
from tests.node_agent.checks.collect.measured_tree import collect, write
from tests.node_agent.checks.measured import healthy


def test_the_measurements_of_the_tree(host: MeasuredHost) -> None:
    assert [gpu["address"] for gpu in collect("pci_gpus", host)] == ["0000:18:00.0", "0000:2a:00.0"]
    assert collect("gpu_device_files", host)["/dev/nvidia0"] is True
    assert collect("gpu_device_files", host)["/dev/nvidia1"] is False
    assert collect("rdma", host)["mlx5_3"] == healthy()["rdma"]["mlx5_3"]
    assert collect("drives", host) == {"nvme0": "live", "nvme1": "live"}
    assert collect("memory_mib", host) == 3170893824 // 1024
    assert collect("root", host)["read_only"] is False
    assert collect("kernel_settings", host) == {
        "numa_nodes": 2,
        "numa_balancing": "1",
        "command_line": ["BOOT_IMAGE=/vmlinuz", "iommu=pt", "quiet"],
    }


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("rdma_errors", "proc/sys/kernel/random/boot_id"),
        ("clock_jump", "proc/sys/kernel/random/boot_id"),
        ("kernel_settings", "proc/cmdline"),
        ("memory_mib", "proc/meminfo"),
        ("mounts", "proc/self/mountinfo"),
        ("root", "proc/self/mountinfo"),
        ("pci_gpus", "sys/bus/pci/devices/0000:18:00.0/config"),
    ],
)
def test_without_its_file_there_is_no_measurement(name: str, path: str, host: MeasuredHost) -> None:
    (host.root / path).unlink()
    found = collect(name, host)
    assert isinstance(found, Missing)
    assert path.rsplit("/", maxsplit=1)[-1] in found.reason


def test_what_a_collector_did_not_foresee_is_a_reason(host: MeasuredHost) -> None:
    def breaks(_host: MeasuredHost, _seconds: float) -> object:
        raise RuntimeError("strange")

    assert measure(breaks, host, 1.0) == Missing("measuring failed: RuntimeError: strange")


def test_a_container_that_boots_again_has_another_boot_with_the_same_kernel(host: MeasuredHost) -> None:
    stat = "1 (a) b (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {} 170000 2000 18446744073709551615\n"
    kernel = boot_of(host.root)
    boots = []
    for ticks in (312, 90417):
        write(host.root / "proc/1/stat", stat.format(ticks))
        boots.append(boot_of(host.root))
    assert boots == [f"{kernel}-312", f"{kernel}-90417"]
