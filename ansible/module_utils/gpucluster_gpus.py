"""What a host has of NVIDIA's, and what follows from it. Looking and deciding, no doing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VENDOR = "0x10de"
DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers: first two bytes of sysfs' `class`
SWITCH = "0x0680"  # NVSwitch: "other bridge"
# From here on a kernel hands buffers of the open modules to RDMA devices by itself (dma-buf).
DMA_BUF_KERNEL = (5, 12)


@dataclass(frozen=True)
class Hardware:
    """One host.

    Args:
        gpus, switches: PCI addresses.
        kernel: release of the running kernel.
        driver: version of the loaded module, or of the one on the disk; empty if there is none.
        loaded: the module is loaded.
        open_modules: it is the open one.
        rdma: names of RDMA devices.
        packages: installed packages of NVIDIA's, name to version.
    """

    gpus: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    kernel: str = ""
    driver: str = ""
    loaded: bool = False
    open_modules: bool = False
    rdma: tuple[str, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def branch(self) -> str:
        """The driver's, such as "580"."""
        return self.driver.partition(".")[0]


@dataclass(frozen=True)
class Wish:
    """The settings, and the packages of this system by purpose; `{branch}` stands for the branch in their names.

    Args:
        install: the driver may be installed; else the image has brought it.
        fabric: the shape needs the fabric manager although no switch shows up on the bus.
    """

    install: bool
    branch: str
    replace: bool
    dcgm: bool
    fabric: bool
    packages: dict[str, list[str]]


@dataclass
class Plan:
    """What to do.

    Args:
        driver: packages of the driver to install; `removed` go before.
        same_version: packages that must have exactly the driver's version.
        optional: packages without which GPUs still work.
        modules: kernel modules to load now and at every boot.
        units: services that must run.
        say: what the operator reads.
        fault: why it can't be done; nothing is done then.
    """

    driver: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    same_version: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    say: list[str] = field(default_factory=list)
    fault: str = ""


def read(path: Path) -> str:
    """The text of a file, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def names(path: Path) -> list[str]:
    """What a directory holds, empty where there is none."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def survey(root: Path, kernel: str, packages: dict[str, str]) -> Hardware:
    """Look at a host through its /sys and /proc below `root`."""
    devices = root / "sys/bus/pci/devices"
    kinds = {
        name: read(devices / name / "class")[:6] for name in names(devices) if read(devices / name / "vendor") == VENDOR
    }
    said = read(root / "proc/driver/nvidia/version")
    module = root / "sys/module/nvidia/version"
    loaded = read(module)
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", said)
    on_disk = "" if loaded else module_version(root, kernel)
    return Hardware(
        gpus=tuple(name for name, kind in kinds.items() if kind in DISPLAY),
        switches=tuple(name for name, kind in kinds.items() if kind == SWITCH),
        kernel=kernel,
        driver=loaded or (found.group(1) if found else "") or on_disk,
        loaded=bool(loaded or found),
        open_modules="open kernel module" in said.lower() or on_disk_is_open(packages),
        rdma=tuple(names(root / "sys/class/infiniband")),
        packages=packages,
    )


def has_module(root: Path, kernel: str) -> bool:
    """Whether the driver has a module for a kernel, wherever it lies and however it is packed."""
    return any((root / "lib/modules" / kernel).rglob("nvidia.ko*"))


def module_version(root: Path, kernel: str) -> str:
    """The version that a module of this kernel carries, if it is there and not compressed."""
    for folder in ("updates/dkms", "extra", "kernel/drivers/video", "kernel/nvidia", "extra/drivers/video/nvidia"):
        file = root / "lib/modules" / kernel / folder / "nvidia.ko"
        if file.is_file():
            found = re.search(rb"\0version=(\d+\.\d+(?:\.\d+)?)\0", b"\0" + file.read_bytes())
            return found.group(1).decode() if found else ""
    return ""


def on_disk_is_open(packages: dict[str, str]) -> bool:
    """Whether the packages are those of the open modules."""
    return any(re.match(r"(nvidia-open|.*nvidia.*-open(-|$)|kmod-nvidia-open)", name) for name in packages)


def kernel_at_least(release: str, wanted: tuple[int, int]) -> bool:
    """Compare "5.15.0-206.el9uek" with (5, 12)."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= wanted


def named(wish: Wish, purpose: str, branch: str) -> list[str]:
    """The packages of a purpose for a branch."""
    return [name.format(branch=branch) for name in wish.packages.get(purpose, [])]


def plan(host: Hardware, wish: Wish) -> Plan:
    """What to do on this host."""
    made = Plan()
    if not host.gpus:
        made.say.append("no NVIDIA GPU on this host: nothing to do")
        return made
    count = f"{len(host.gpus)} NVIDIA GPU{'s' if len(host.gpus) > 1 else ''}"
    plan_driver(host, wish, made, count)
    if made.fault:
        return made
    branch = wish.branch if made.driver else host.branch
    made.units.append("nvidia-persistenced")
    if host.switches or wish.fabric:
        made.same_version += named(wish, "fabric_manager", branch)
        made.units.append("nvidia-fabricmanager")
    if wish.dcgm:
        made.optional += named(wish, "dcgm", branch)
        made.units.append("nvidia-dcgm")
    plan_peer_memory(host, made)
    return made


def plan_driver(host: Hardware, wish: Wish, made: Plan, count: str) -> None:
    """Keep it, install it, replace it, or say why not."""
    wanted = named(wish, "driver", wish.branch)
    if not host.driver:
        if wish.install:
            made.driver = wanted
            made.say.append(f"{count} and no driver: installing branch {wish.branch}")
        else:
            made.fault = (
                f"this host has {count} and no driver: choose an image that brings one, or set nvidia.driver to "
                "`install`"
            )
    elif not wish.install or host.branch == wish.branch:
        made.say.append(f"{count}, driver {host.driver} {'stays' if wish.install else 'of the image'}")
    elif not wish.replace:
        made.say.append(
            f"{count}, driver {host.driver} stays although branch {wish.branch} is asked for: the image brought it. "
            "nvidia.replace_driver: true replaces it"
        )
    else:
        made.driver = wanted
        made.removed = sorted(name for name in host.packages if is_of_driver(name) and name not in wanted)
        made.say.append(f"{count}, driver {host.driver} is replaced by branch {wish.branch}: reboot this host then")
        if not made.removed:
            made.fault = (
                f"driver {host.driver} of this host did not come from packages, so it can't be replaced by them: run "
                "its own uninstaller in the image, or take nvidia.replace_driver back"
            )


def is_of_driver(name: str) -> bool:
    """Whether a package belongs to a driver: container tools, DCGM and firmware of others do not."""
    others = ("nvidia-container", "nvidia-dcgm", "nvidia-mlnx", "nvidia-gds", "nvidia-cuda", "nvidia-modprobe")
    return not name.startswith((*others, "libnvidia-container", "datacenter-gpu-manager"))


def plan_peer_memory(host: Hardware, made: Plan) -> None:
    """How RDMA devices reach a GPU's memory: the kernel's dma-buf where it can, else a module of the driver's."""
    if not host.rdma:
        return
    open_modules = bool(made.driver) or host.open_modules  # what we install is open
    if open_modules and kernel_at_least(host.kernel, DMA_BUF_KERNEL):
        made.say.append("RDMA reaches the GPUs' memory through dma-buf")
    else:
        made.modules.append("nvidia_peermem")
        made.say.append("RDMA reaches the GPUs' memory through nvidia_peermem: no dma-buf with this kernel and driver")


def summary(host: Hardware, made: Plan) -> dict[str, Any]:
    """As a fact, for other roles."""
    return {"gpus": list(host.gpus), "driver": host.driver, "say": made.say}
