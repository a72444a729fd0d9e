"""Software of a host's GPUs: detected in fictitious trees of /sys and /proc, planned by a pure function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ansible.loading import load

gpus = load("module_utils/gpucluster_gpus.py")

PACKAGES = {
    "driver": ["nvidia-driver-{branch}-server-open"],
    "fabric_manager": ["nvidia-fabricmanager-{branch}"],
    "dcgm": ["datacenter-gpu-manager-4-core"],
}
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"


def tree(root: Path, devices: dict[str, tuple[str, str]], *, driver: str = "", rdma: tuple[str, ...] = ()) -> Path:
    """A host: PCI address to (vendor, class); what /proc/driver/nvidia/version reports."""
    for address, (vendor, kind) in devices.items():
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    if driver:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(driver)
    for name in rdma:
        (root / "sys/class/infiniband" / name).mkdir(parents=True)
    return root


def desired(**changes: Any) -> Any:
    asked = {"install": False, "branch": "580", "replace": False, "dcgm": False, "fabric": False, "packages": PACKAGES}
    return gpus.Desired(**(asked | changes))


def host(**changes: Any) -> Any:
    return gpus.Hardware(**({"gpus": ("0000:0f:00.0",), "kernel": "6.8.0-1030-oracle"} | changes))


def test_gpus_and_switches_are_found_on_the_bus_and_others_of_the_vendor_are_not(tmp_path: Path) -> None:
    devices = {
        "0000:0f:00.0": ("0x10de", "0x030200"),  # a GPU without a display
        "0000:15:00.0": ("0x10de", "0x030000"),  # one with
        "0000:16:00.1": ("0x10de", "0x040300"),  # its sound
        "0000:c4:00.0": ("0x10de", "0x068000"),  # an NVSwitch
        "0000:00:02.0": ("0x1013", "0x030000"),  # the console of a virtual machine
        "0000:1a:00.0": ("0x15b3", "0x020000"),  # a network card
    }
    found = gpus.survey(tree(tmp_path, devices, driver=OPEN, rdma=("mlx5_0",)), "6.8.0", {})
    assert found.gpus == ("0000:0f:00.0", "0000:15:00.0")
    assert found.switches == ("0000:c4:00.0",)
    assert (found.driver, found.branch, found.open_modules, found.loaded) == ("580.95.05", "580", True, True)
    assert found.rdma == ("mlx5_0",)


def test_the_closed_modules_are_known_as_such(tmp_path: Path) -> None:
    found = gpus.survey(tree(tmp_path, {}, driver=CLOSED), "5.15.0", {"nvidia-driver-550-server": "550.90.07"})
    assert (found.driver, found.open_modules) == ("550.90.07", False)


def test_a_driver_that_is_not_loaded_yet_counts(tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/6.8.0/updates/dkms"
    folder.mkdir(parents=True)
    (folder / "nvidia.ko").write_bytes(b"\x7fELF..license=Dual MIT/GPL\0version=570.86.15\0supported=external\0")
    found = gpus.survey(tmp_path, "6.8.0", {})
    assert (found.driver, found.loaded) == ("570.86.15", False)


def test_a_host_without_sys_has_no_gpu(tmp_path: Path) -> None:
    made = gpus.plan(gpus.survey(tmp_path / "nowhere", "6.8.0", {}), desired(install=True, dcgm=True, fabric=True))
    assert made.messages == ["no NVIDIA GPU on this host: nothing to do"]
    assert [made.driver, made.units, made.modules, made.optional, made.same_version, made.fault] == [[]] * 5 + [""]


@pytest.mark.parametrize(
    ("there", "asked", "installed", "removed", "words"),
    [
        ({"driver": "550.90.07"}, {}, [], [], "of the image"),
        ({"driver": "550.90.07"}, {"install": True}, [], [], "replace_driver: true to replace it"),
        ({"driver": "580.95.05"}, {"install": True, "replace": True}, [], [], "580.95.05 stays"),
        ({}, {"install": True}, ["nvidia-driver-580-server-open"], [], "installing branch 580"),
        (
            {
                "driver": "550.90.07",
                "packages": {
                    "nvidia-driver-550-server": "550.90.07-0ubuntu1",
                    "nvidia-container-toolkit": "1.17.0",
                    "datacenter-gpu-manager-4-core": "4.2",
                },
            },
            {"install": True, "replace": True},
            ["nvidia-driver-580-server-open"],
            ["nvidia-driver-550-server"],
            "reboot this host afterwards",
        ),
    ],
)
def test_a_driver_is_kept_installed_or_replaced(
    there: dict[str, Any], asked: dict[str, Any], installed: list[str], removed: list[str], words: str
) -> None:
    made = gpus.plan(host(**there), desired(**asked))
    assert (made.driver, made.removed, made.fault) == (installed, removed, "")
    assert words in " ".join(made.messages)
    assert "nvidia-persistenced" in made.units


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        ({}, {}, "set nvidia.driver to `install`"),
        ({"driver": "550.90.07"}, {"install": True, "replace": True}, "was not installed from packages"),
    ],
)
def test_what_cant_be_done_is_reported_and_not_done(there: dict[str, Any], asked: dict[str, Any], words: str) -> None:
    made = gpus.plan(host(**there), desired(**asked, dcgm=True, fabric=True))
    assert words in made.fault
    assert [made.units, made.modules, made.optional, made.same_version] == [[]] * 4


def test_the_fabric_manager_follows_the_driver_that_is_there_and_not_the_one_that_is_asked_for() -> None:
    made = gpus.plan(host(driver="550.90.07", switches=("0000:c4:00.0",)), desired(install=True))
    assert made.same_version == ["nvidia-fabricmanager-550"]
    assert "nvidia-fabricmanager" in made.units
    assert gpus.plan(host(driver="580.1.2"), desired()).same_version == []
    assert gpus.plan(host(driver="580.1.2"), desired(fabric=True)).same_version == ["nvidia-fabricmanager-580"]


@pytest.mark.parametrize(
    ("kernel", "open_modules", "rdma", "modules"),
    [
        ("6.8.0-1030-oracle", True, ("mlx5_0",), []),
        ("5.12.0", True, ("mlx5_0",), []),
        ("5.4.17-2136.el8uek", True, ("mlx5_0",), ["nvidia_peermem"]),
        ("6.8.0-1030-oracle", False, ("mlx5_0",), ["nvidia_peermem"]),
        ("5.4.17", False, (), []),
        ("strange", True, ("mlx5_0",), ["nvidia_peermem"]),
    ],
)
def test_rdma_reaches_gpus_through_the_kernel_or_through_a_module(
    kernel: str, open_modules: bool, rdma: tuple[str, ...], modules: list[str]
) -> None:
    made = gpus.plan(host(driver="580.1.2", kernel=kernel, open_modules=open_modules, rdma=rdma), desired())
    assert made.modules == modules


def test_a_driver_that_will_be_installed_makes_no_old_kernel_newer() -> None:
    made = gpus.plan(host(kernel="4.18.0-553.el8_10", rdma=("mlx5_0",)), desired(install=True))
    assert made.driver
    assert made.modules == ["nvidia_peermem"]


@pytest.mark.parametrize("file", ["updates/dkms/nvidia.ko", "weak-updates/nvidia.ko.xz", "kernel/nvidia/nvidia.ko.zst"])
def test_a_module_is_found_wherever_it_lies_and_for_its_kernel_alone(tmp_path: Path, file: str) -> None:
    place = tmp_path / "lib/modules/6.8.0" / file
    place.parent.mkdir(parents=True)
    place.with_name("nvidia-uvm.ko").write_bytes(b"")
    assert not gpus.has_module(tmp_path, "6.8.0")
    place.write_bytes(b"")
    assert gpus.has_module(tmp_path, "6.8.0")
    assert not gpus.has_module(tmp_path, "6.8.1")


@given(
    driver=st.sampled_from(["", "550.1", "580.1", "590.1"]),
    packages=st.dictionaries(st.sampled_from(["nvidia-driver-550", "nvidia-container-toolkit"]), st.just("1")),
    install=st.booleans(),
    branch=st.sampled_from(["550", "580"]),
    fabric=st.booleans(),
)
def test_without_the_word_no_driver_is_ever_replaced(
    driver: str, packages: dict[str, str], install: bool, branch: str, fabric: bool
) -> None:
    made = gpus.plan(host(driver=driver, packages=packages), desired(install=install, branch=branch, fabric=fabric))
    assert made.removed == []
    assert not (driver and made.driver)
    assert install or not made.driver
