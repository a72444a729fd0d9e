"""User data of a machine: what cloud-init does at its first boot, and what the machine does at every boot.

Pure: the same wish gives the same bytes. The scripts are files in `user_data_files/`; what they need to know is on the
machine in a file of its own.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from gpucluster import shapes
from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec

#: OCI takes 32,000 bytes of metadata for an instance, this in base64 among it (docs: LaunchInstanceDetails).
MAX_BYTES = 16 * 1024
#: The drives of a node; the boot volume is none of them, for it is attached over the network.
NVME_PATTERN = "/dev/nvme*n1"

_INDENT = 4
_LEVELS = re.compile("^ +")
_COMMENT = re.compile(" *#")
_DATA = "/etc/gpucluster/node.conf"
_PROGRAMS = "/usr/local/sbin/gpucluster-"
_UNITS = "/etc/systemd/system/gpucluster-"
_EVERY_BOOT = "/var/lib/cloud/scripts/per-boot/gpucluster"


@dataclass(frozen=True)
class LocalDisk:
    """A machine's own NVMe drives as one xfs file system.

    Args:
        count: the drives that the shape promises.
        devices: device files or patterns, with blanks between them. In a container only names are taken.
        group: volume group, where there are several drives.
        volume: the logical volume in it.
        label: of the file system; xfs allows 12 characters.
    """

    mount_path: str
    count: int
    devices: str = NVME_PATTERN
    group: str = "nvme"
    volume: str = "localscratch"
    label: str = "localscratch"


@dataclass(frozen=True)
class RdmaAddressing:
    """Fixed addresses for RDMA interfaces.

    Interface `i` of a host that has address `n` of the private subnet gets address `n` of the `i`-th range of that size
    in `rdma_cidr`.

    Raises:
        InputError: the range does not hold that many subnets.
    """

    interfaces: tuple[str, ...]
    private_subnet_cidr: str
    rdma_cidr: str

    def __post_init__(self) -> None:
        needed = len(self.interfaces) * ipaddress.IPv4Network(self.private_subnet_cidr).num_addresses
        if needed > ipaddress.IPv4Network(self.rdma_cidr).num_addresses:
            raise InputError(
                f"network.rdma_cidr {self.rdma_cidr} is too small: {len(self.interfaces)} RDMA interfaces of each node "
                f"need a range as large as private_subnet_cidr {self.private_subnet_cidr} each",
                hint="Choose a larger rdma_cidr or a smaller private subnet",
            )

    def address(self, interface: int, host: str) -> ipaddress.IPv4Interface:
        """The address of an interface, counted from 0, on the host with this address in the private subnet."""
        subnet, space = ipaddress.IPv4Network(self.private_subnet_cidr), ipaddress.IPv4Network(self.rdma_cidr)
        place = int(ipaddress.IPv4Address(host)) - int(subnet.network_address)
        found = space.network_address + interface * subnet.num_addresses + place
        return ipaddress.IPv4Interface((found, subnet.prefixlen))


@dataclass(frozen=True)
class Machine:
    """What a machine shall be before Ansible sees it; None for what it has not, or what others take care of."""

    timezone: str
    local_disk: LocalDisk | None = None
    rdma: RdmaAddressing | None = None
    firewalld: bool = False


def machine_of(spec: ClusterSpec, pool: str | None) -> Machine:
    """What the nodes of a pool shall be; the controller without one."""
    wish = spec.controller if pool is None else spec.pools[pool]
    disk, drives = spec.storage.local_disk, shapes.get(wish.shape).nvme_count
    return Machine(
        timezone=spec.software.timezone,
        local_disk=LocalDisk(disk.mount_path, drives) if disk.enabled and drives else None,
        rdma=None if pool is None else _rdma_of(spec, pool),
    )


def _rdma_of(spec: ClusterSpec, pool: str) -> RdmaAddressing | None:
    wish = spec.pools[pool]
    if not wish.uses_rdma or wish.rdma_addressing != "cloud-init":
        return None
    return RdmaAddressing(wish.hardware.rdma_interfaces, spec.network.private_subnet_cidr, spec.network.rdma_cidr)


def user_data(machine: Machine) -> str:
    """The `#cloud-config` document, at most MAX_BYTES long. There is no secret in it."""
    document = {
        "timezone": machine.timezone,
        "growpart": {"mode": "auto", "devices": ["/"], "ignore_growroot_disabled": False},
        "resize_rootfs": True,
        "write_files": [*_files(machine)],
        "runcmd": [[f"{_PROGRAMS}first-boot"]],
    }
    text = "#cloud-config\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000)
    assert len(text.encode()) <= MAX_BYTES, "the scripts have outgrown the user data of an instance"
    return text


def _files(machine: Machine) -> list[dict[str, str]]:
    found = [
        _file(_DATA, _data(machine)),
        _file(f"{_PROGRAMS}first-boot", _script("first-boot.sh"), "0755"),
        _file(_EVERY_BOOT, _script("boot.sh"), "0755"),
    ]
    for name, wanted in (("local-disk", machine.local_disk), ("rdma-addresses", machine.rdma)):
        if wanted is not None:
            found.append(_file(f"{_PROGRAMS}{name}", _script(f"{name}.sh"), "0755"))
            found.append(_file(f"{_UNITS}{name}.service", _text(f"{name}.service")))
    return found


def _data(machine: Machine) -> str:
    """What the scripts read, as assignments of the shell."""
    values: dict[str, object] = {"firewalld": "on" if machine.firewalld else "off"}
    if machine.local_disk is not None:
        values |= {f"local_disk_{name}": value for name, value in vars(machine.local_disk).items()}
    if machine.rdma is not None:
        values |= {
            "rdma_interfaces": " ".join(machine.rdma.interfaces),
            "private_subnet": machine.rdma.private_subnet_cidr,
            "rdma_cidr": machine.rdma.rdma_cidr,
        }
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def _file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    return {"path": path, "permissions": permissions, "content": content}


def _script(name: str) -> str:
    """A script with one blank for each step of indentation and without its comments, for user data has little room.

    Packing it would save more, but not give the same bytes with every version of zlib.
    """
    first, *lines = _text(name).splitlines()
    kept = [
        _LEVELS.sub(lambda found: " " * (len(found[0]) // _INDENT), line) for line in lines if not _COMMENT.match(line)
    ]
    return "\n".join([first, "# Written by cloud-init; its comments are in gpucluster's source", *kept, ""])


def _text(name: str) -> str:
    return resources.files("gpucluster.handover").joinpath("user_data_files", name).read_text(encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable, as literal blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
