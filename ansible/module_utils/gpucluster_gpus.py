"""Detects NVIDIA hardware and software on a host, and plans the changes. Changes nothing itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VENDOR = "0x10de"
DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers: first two bytes of sysfs' `class`
SWITCH = "0x0680"  # NVSwitch: "other bridge"
# From this version on a kernel shares buffers of the open modules with RDMA devices itself (dma-buf).
DMA_BUF_KERNEL = (5, 12)


@dataclass(frozen=True)
class Hardware:
    """The hardware and the driver of one host.

    Args:
        gpus, switches: PCI addresses.
        kernel: release of the running kernel.
        driver: version of the loaded module, or of the one on disk; empty if there is none.
        loaded: the module is loaded.
        open_modules: it is the open module.
        rdma: names of RDMA devices.
        packages: installed packages of NVIDIA, name to version.
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
        """The branch of the driver, such as "580"."""
        return self.driver.partition(".")[0]


@dataclass(frozen=True)
class Desired:
    """The desired state, and the packages of this system by purpose; `{branch}` stands for the branch in their names.

    Args:
        install: the driver may be installed; otherwise the image must have it.
        fabric: the shape needs the fabric manager although no switch is visible on the bus.
    """

    install: bool
    branch: str
    replace: bool
    dcgm: bool
    fabric: bool
    packages: dict[str, list[str]]


@dataclass
class Plan:
    """The planned changes.

    Args:
        driver: packages of the driver to install, after `removed`.
        same_version: packages that must have exactly the driver's version.
        optional: packages without which GPUs still work.
        modules: kernel modules to load now and at every boot.
        units: services that must run.
        messages: for the operator.
        fault: why the plan is impossible; then nothing is changed.
    """

    driver: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    same_version: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    fault: str = ""


def read(path: Path) -> str:
    """The text of a file, empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def names(path: Path) -> list[str]:
    """The entries of a directory, empty if it does not exist."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def survey(root: Path, kernel: str, packages: dict[str, str]) -> Hardware:
    """Read the hardware from /sys and /proc below `root`."""
    devices = root / "sys/bus/pci/devices"
    kinds = {
        name: read(devices / name / "class")[:6] for name in names(devices) if read(devices / name / "vendor") == VENDOR
    }
    version = read(root / "proc/driver/nvidia/version")
    module = root / "sys/module/nvidia/version"
    loaded = read(module)
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version)
    on_disk = "" if loaded else module_version(root, kernel)
    return Hardware(
        gpus=tuple(name for name, kind in kinds.items() if kind in DISPLAY),
        switches=tuple(name for name, kind in kinds.items() if kind == SWITCH),
        kernel=kernel,
        driver=loaded or (found.group(1) if found else "") or on_disk,
        loaded=bool(loaded or found),
        open_modules="open kernel module" in version.lower() or on_disk_is_open(packages),
        rdma=tuple(names(root / "sys/class/infiniband")),
        packages=packages,
    )


def has_module(root: Path, kernel: str) -> bool:
    """Whether the driver has a module for a kernel, in any folder, compressed or not."""
    return any((root / "lib/modules" / kernel).rglob("nvidia.ko*"))


def module_version(root: Path, kernel: str) -> str:
    """The version of the module for this kernel, if it exists and is not compressed."""
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


def named(desired: Desired, purpose: str, branch: str) -> list[str]:
    """The packages of a purpose for a branch."""
    return [name.format(branch=branch) for name in desired.packages.get(purpose, [])]


def plan(host: Hardware, desired: Desired) -> Plan:
    """Plan the changes on this host."""
    made = Plan()
    if not host.gpus:
        made.messages.append("no NVIDIA GPU on this host: nothing to do")
        return made
    count = f"{len(host.gpus)} NVIDIA GPU{'s' if len(host.gpus) > 1 else ''}"
    plan_driver(host, desired, made, count)
    if made.fault:
        return made
    branch = desired.branch if made.driver else host.branch
    made.units.append("nvidia-persistenced")
    if host.switches or desired.fabric:
        made.same_version += named(desired, "fabric_manager", branch)
        made.units.append("nvidia-fabricmanager")
    if desired.dcgm:
        made.optional += named(desired, "dcgm", branch)
        made.units.append("nvidia-dcgm")
    plan_peer_memory(host, made)
    return made


def plan_driver(host: Hardware, desired: Desired, made: Plan, count: str) -> None:
    """Keep, install or replace the driver, or report why not."""
    wanted = named(desired, "driver", desired.branch)
    if not host.driver:
        if desired.install:
            made.driver = wanted
            made.messages.append(f"{count} and no driver: installing branch {desired.branch}")
        else:
            made.fault = (
                f"this host has {count} and no driver: choose an image that has one, or set nvidia.driver to `install`"
            )
    elif not desired.install or host.branch == desired.branch:
        made.messages.append(f"{count}, driver {host.driver} {'stays' if desired.install else 'of the image'}")
    elif not desired.replace:
        made.messages.append(
            f"{count}, driver {host.driver} of the image stays although branch {desired.branch} is requested. "
            "Set nvidia.replace_driver: true to replace it"
        )
    else:
        made.driver = wanted
        made.removed = sorted(name for name in host.packages if is_of_driver(name) and name not in wanted)
        made.messages.append(
            f"{count}, driver {host.driver} is replaced by branch {desired.branch}: reboot this host afterwards"
        )
        if not made.removed:
            made.fault = (
                f"driver {host.driver} of this host was not installed from packages, so packages can't replace it: run "
                "its own uninstaller in the image, or unset nvidia.replace_driver"
            )


def is_of_driver(name: str) -> bool:
    """Whether a package belongs to the driver: container tools, DCGM and firmware of other devices do not."""
    others = ("nvidia-container", "nvidia-dcgm", "nvidia-mlnx", "nvidia-gds", "nvidia-cuda", "nvidia-modprobe")
    return not name.startswith((*others, "libnvidia-container", "datacenter-gpu-manager"))


def plan_peer_memory(host: Hardware, made: Plan) -> None:
    """How RDMA devices access GPU memory: dma-buf if the kernel supports it, otherwise a module of the driver."""
    if not host.rdma:
        return
    open_modules = bool(made.driver) or host.open_modules  # the packages that this module installs have open modules
    if open_modules and kernel_at_least(host.kernel, DMA_BUF_KERNEL):
        made.messages.append("RDMA accesses GPU memory through dma-buf")
    else:
        made.modules.append("nvidia_peermem")
        made.messages.append("RDMA accesses GPU memory through nvidia_peermem: no dma-buf with this kernel and driver")


def summary(host: Hardware, made: Plan) -> dict[str, Any]:
    """The fact for other roles."""
    return {"gpus": list(host.gpus), "driver": host.driver, "messages": made.messages}
