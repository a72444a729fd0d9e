"""What configures a host, on the system of a GPU machine: scripts of the first boot, and facts that roles decide by.

    make test-gpu

In the namespaces of `machine.py`, so the machine keeps its files and its network. The drive is a loop device, which the
machine sees and gets back; RDMA interfaces are pairs of veth with the names of the hardware. Without cloud-init,
systemd and udev: the scripts are started by hand. It needs mkfs.xfs (xfsprogs) and ip (iproute2).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpucluster.handover.user_data import BootSettings, LocalDiskSettings, RdmaAddressing, user_data
from gpucluster.paths import ansible_dir
from tests.gpu.machine import Machine, gpus, need_machine, run_module
from tests.loop_drives import blank_drive

PATH = "/opt/localdisk"
INTERFACES = ("enp12s0f0", "enp12s0f1")
DISK, RDMA = "/usr/local/sbin/gpucluster-local-disk", "/usr/local/sbin/gpucluster-rdma-addresses"


@dataclass(frozen=True)
class Booted:
    """The machine with the files of a first boot."""

    machine: Machine
    drive: str
    rdma: RdmaAddressing

    def sh(self, script: str, status: int = 0) -> str:
        done = self.machine.run("sh", "-c", script, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_machine()
    with blank_drive(tmp_path_factory.mktemp("drive")) as device:
        yield device


@pytest.fixture(scope="module")
def booted(drive: str) -> Iterator[Booted]:
    absent = [name for name in ("mkfs.xfs", "ip") if shutil.which(name) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    rdma = RdmaAddressing(INTERFACES, "192.0.2.0/24", "192.168.0.0/16")
    settings = BootSettings("UTC", LocalDiskSettings(PATH, 1, devices=drive), rdma)
    with Machine({"whole": gpus()}, {}) as machine:
        for file in yaml.safe_load(user_data(settings))["write_files"]:
            machine.write(file["path"], file["content"], file.get("permissions", "644"))
        try:
            yield Booted(machine, drive, rdma)
        finally:
            machine.run("umount", PATH, check=False)


def test_the_drive_is_made_once_and_what_is_on_it_stays(booted: Booted) -> None:
    booted.sh(DISK)
    assert booted.sh(f"findmnt -no FSTYPE,SOURCE {PATH}").split() == ["xfs", booted.drive]
    assert booted.sh(f"stat -c %u:%a {PATH} {PATH}/containers").split() == ["0:1777", "0:755"]
    assert booted.sh("head -1 /run/gpucluster/local-disk") == "mounted"
    booted.sh(f"echo precious > {PATH}/marker && {DISK} && umount {PATH} && {DISK}")
    assert booted.sh(f"cat {PATH}/marker") == "precious"
    assert booted.sh(f"grep -c {PATH} /etc/fstab") == "1"


def test_a_drive_with_something_else_is_left_alone(booted: Booted) -> None:
    booted.sh(f"umount {PATH} && wipefs --all --quiet {booted.drive} && mkswap {booted.drive}")
    booted.sh(DISK, status=1)
    assert booted.sh(f"blkid -p -o value -s TYPE {booted.drive}") == "swap"
    booted.sh(f"wipefs --all --quiet {booted.drive} && {DISK}")


def test_rdma_interfaces_get_their_addresses(booted: Booted) -> None:
    for name in INTERFACES:
        booted.sh(f"ip link add {name} type veth peer name {name[3:]}p")
    booted.sh(f"{RDMA} && {RDMA}")
    for index, name in enumerate(INTERFACES):
        address = booted.sh(f"ip -4 -o address show dev {name} | awk '{{print $4}}'")
        assert address == str(booted.rdma.address(index, "192.0.2.1"))
        assert booted.sh(f"cd /proc/sys/net/ipv4/conf/{name} && cat rp_filter arp_ignore arp_announce").split() == [
            *"221"
        ]
    assert booted.sh("head -1 /run/gpucluster/rdma-addresses") == "addressed"


def test_the_facts_that_roles_decide_by_are_those_of_this_machine(booted: Booted) -> None:
    packages = yaml.safe_load((ansible_dir() / "group_vars/all/packages.yml").read_text())["packages"]
    arguments = {
        "user": "root",
        "key": "",
        "agent": "/usr/local/bin/gpucluster-agent",
        "packages": packages,
        "purposes": [],
    }
    facts = run_module(booted.machine, "gpucluster_host", arguments)["ansible_facts"]["gpucluster_host"]
    words = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    assert facts["system"].startswith(words["NAME"].strip('"').split()[0])
    assert facts["nvidia_gpus"] == len(gpus())
    assert facts["cgroup"]["version"] == 2
    assert facts["user_namespaces"]["supported"]
