"""A node as a tree of files like the kernel's, and programs by what they print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.collect.place import MeasuredHost, measure
from gpucluster.node_agent.checks.judges.rdma import LIMITS
from gpucluster.node_agent.programs import ProgramAnswer

BOOT = "11111111-2222-3333-4444-555555555555"


MOUNTS = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "30 22 0:30 / /home rw,relatime - nfs4 a:/home rw\n"
    "31 22 9:1 / /mnt/my\\040disk rw - xfs /dev/nvme rw\n"
)


class BootClock:
    """Time since the boot, and the wall clock."""

    def __init__(self) -> None:
        self.now, self.offset = 5000.0, 1_700_000_000.0


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def tree(root: Path) -> None:
    """A node with two GPUs, an NVSwitch, two RDMA devices and two drives."""
    write(root / "proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    write(root / "proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt quiet\n")
    write(root / "proc/sys/kernel/numa_balancing", "1\n")
    for node in ("node0", "node1"):
        write(root / "sys/devices/system/node" / node / "cpulist", "0-63\n")
    write(root / "sys/devices/system/node/online", "0-1\n")
    write(root / "proc/meminfo", "MemTotal:       3170893824 kB\nMemFree: 1 kB\n")
    write(root / "proc/self/mountinfo", MOUNTS)
    (root / "home").mkdir()
    for name, vendor, kind, config in (
        ("0000:18:00.0", "0x10de", "0x030200", b"\xde\x10\x35\x23more"),
        ("0000:2a:00.0", "0x10de", "0x030200", b"\xde\x10\x35\x23more"),
        ("0000:05:00.0", "0x10de", "0x068000", b"\xde\x10\xa3\x22more"),
        ("0000:06:00.0", "0x15b3", "0x020000", b"\xb3\x15\x1b\x10more"),
    ):
        device = root / "sys/bus/pci/devices" / name
        write(device / "vendor", vendor + "\n")
        write(device / "class", kind + "\n")
        write(device / "config", config)
    for name in ("mlx5_0", "mlx5_3"):
        device = root / "sys/class/infiniband" / name
        for file, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)")):
            write(device / "ports/1" / file, text + "\n")
        for counter in LIMITS:
            folder = "hw_counters" if counter.startswith(("rnr", "roce")) else "counters"
            write(device / "ports/1" / folder / counter, "0\n")
        for file in ("current_link_width", "max_link_width"):
            write(device / "device" / file, "16\n")
    for name, transport in (("nvme0", "pcie"), ("nvme1", "pcie"), ("nvme2", "tcp")):
        write(root / "sys/class/nvme" / name / "state", "live\n")
        write(root / "sys/class/nvme" / name / "transport", transport + "\n")
    write(root / "dev/nvidia0", "")


def said(answers: Mapping[str, Any]) -> Callable[[list[str], float, int], ProgramAnswer]:
    """Programs by the start of their command line: what they print, or a whole answer."""

    def ask_double(argv: list[str], _seconds: float, _most: int) -> ProgramAnswer:
        for words, answer in answers.items():
            if " ".join(argv).startswith(words):
                return answer if isinstance(answer, ProgramAnswer) else ProgramAnswer(0, answer.encode(), b"", "")
        return ProgramAnswer(None, b"", b"", f"{argv[0]} is not installed")

    return ask_double


def collect(name: str, host: MeasuredHost) -> Any:
    return measure(registry.MEASUREMENTS[name], host, 1.0)


def process(root: Path, pid: int, uid: int, group: str, ticks: int = 0, *, name: str = "x", parent: int = 1) -> None:
    status = f"Name:\t{name}\nUmask:\t0022\nPid:\t{pid}\nPPid:\t{parent}\nTracerPid:\t0\n"
    write(root / f"proc/{pid}/status", f"{status}Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    write(root / f"proc/{pid}/cgroup", f"0::{group}\n")
    write(root / f"proc/{pid}/stat", f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {ticks} {ticks} 0 0\n")
