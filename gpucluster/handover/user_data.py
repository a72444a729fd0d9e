"""User data of a machine: what cloud-init does at the first boot, and what the machine does at every boot.

Pure: the same spec gives the same bytes. The scripts are files in `user_data_files/`; their data is in another file on
the machine.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources

import yaml

from gpucluster import shapes
from gpucluster.errors import InputError
from gpucluster.handover.networks import cluster_networks
from gpucluster.paths import ansible_dir
from gpucluster.spec import ClusterSpec, ControllerSpec, LoginSpec, PoolSpec
from gpucluster.systems import host_python
from gpucluster.text import count

#: OCI allows 32,000 bytes of metadata per instance, including user data in base64 (docs: LaunchInstanceDetails). This
#: leaves 1,600 for ssh keys.
MAX_BYTES = 22_800
#: The local drives of a node. The boot volume does not match, because it is attached over the network.
NVME_PATTERN = "/dev/nvme*n1"

_DATA = "/etc/gpucluster/node.conf"
_PROGRAMS = "/usr/local/sbin/gpucluster-"
_UNITS = "/etc/systemd/system/gpucluster-"
_FIREWALL_DATA = "/etc/gpucluster/firewall.conf"
_EVERY_BOOT = "/var/lib/cloud/scripts/per-boot/gpucluster"


@dataclass(frozen=True)
class LocalDiskSettings:
    """A machine's own NVMe drives as one xfs file system.

    Args:
        count: the number of drives of the shape.
        devices: device files or patterns, separated by spaces. In a container only names are used.
        group: volume group, if there are several drives.
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

    Interface `i` of a host with address `n` of the private subnet has address `n` of the `i`-th range of that size in
    `rdma_cidr`.

    Raises:
        InputError: `rdma_cidr` is too small for that many ranges.
    """

    interfaces: tuple[str, ...]
    private_subnet_cidr: str
    rdma_cidr: str

    def __post_init__(self) -> None:
        needed = len(self.interfaces) * ipaddress.IPv4Network(self.private_subnet_cidr).num_addresses
        if needed > ipaddress.IPv4Network(self.rdma_cidr).num_addresses:
            interfaces = count(len(self.interfaces), "RDMA interface")
            raise InputError(
                f"network.rdma_cidr {self.rdma_cidr} is too small: a node has {interfaces}, and each needs a range as "
                f"large as private_subnet_cidr {self.private_subnet_cidr}",
                hint="Use a larger rdma_cidr or a smaller private subnet",
            )

    def address(self, interface: int, host: str) -> ipaddress.IPv4Interface:
        """The address of the interface with this index, from 0, on the host with this address in the private subnet."""
        subnet, space = ipaddress.IPv4Network(self.private_subnet_cidr), ipaddress.IPv4Network(self.rdma_cidr)
        place = int(ipaddress.IPv4Address(host)) - int(subnet.network_address)
        address = space.network_address + interface * subnet.num_addresses + place
        return ipaddress.IPv4Interface((address, subnet.prefixlen))


@dataclass(frozen=True)
class BootSettings:
    """The settings that a machine applies when it boots; None for what it lacks, or what another program sets.

    Args:
        networks: to which the firewall of the image is opened; with none it is left as it is.
    """

    timezone: str
    local_disk: LocalDiskSettings | None = None
    rdma: RdmaAddressing | None = None
    networks: tuple[str, ...] = ()


def boot_settings(spec: ClusterSpec, machine: ControllerSpec | LoginSpec | PoolSpec) -> BootSettings:
    """The settings for the controller, the login nodes, or the nodes of a pool."""
    disk, drives = spec.storage.local_disk, shapes.get(machine.shape).nvme_count
    return BootSettings(
        timezone=spec.software.timezone,
        local_disk=LocalDiskSettings(disk.mount_path, drives) if disk.enabled and drives else None,
        rdma=_rdma_of(spec, machine) if isinstance(machine, PoolSpec) else None,
        networks=tuple(cluster_networks(spec)),
    )


def _rdma_of(spec: ClusterSpec, desired: PoolSpec) -> RdmaAddressing | None:
    if not desired.uses_rdma or desired.rdma_addressing != "cloud-init":
        return None
    return RdmaAddressing(desired.hardware.rdma_interfaces, spec.network.private_subnet_cidr, spec.network.rdma_cidr)


def user_data(settings: BootSettings) -> str:
    """The `#cloud-config` document, at most MAX_BYTES long. There is no secret in it."""
    document = {
        "timezone": settings.timezone,
        "growpart": {"mode": "auto", "devices": ["/"], "ignore_growroot_disabled": False},
        "resize_rootfs": True,
        "runcmd": [[f"{_PROGRAMS}first-boot"]],
    }
    lines = ["#cloud-config", *yaml.safe_dump(document, sort_keys=False).splitlines(), "write_files:"]
    text = "\n".join([*lines, *(line for file in _files(settings) for line in _as_yaml(file)), ""])
    assert len(text.encode()) <= MAX_BYTES, "the scripts have outgrown the user data of an instance"
    return text


def _as_yaml(file: dict[str, str]) -> Iterator[str]:
    """An item of a list of YAML, its content a readable literal block, with the least indentation: size is limited."""
    yield "-"
    yield f" path: {file['path']}"
    if permissions := file.get("permissions"):
        yield f" permissions: '{permissions}'"
    yield " content: |"
    yield from (f"  {line}" for line in file["content"].splitlines())


def _files(settings: BootSettings) -> list[dict[str, str]]:
    files = [
        _file(_DATA, _data(settings)),
        _file(f"{_PROGRAMS}first-boot", _script(_text("first-boot.sh")), "0755"),
        _file(f"{_PROGRAMS}python", _script(host_python.script()), "0755"),
        _file(_EVERY_BOOT, _script(_text("boot.sh")), "0755"),
        *_service_of_role_base("metadata"),
    ]
    if settings.networks:
        files.append(_file(_FIREWALL_DATA, firewall_data(settings.networks)))
        files += _service_of_role_base("firewall")
    for name, setting in (("local-disk", settings.local_disk), ("rdma-addresses", settings.rdma)):
        if setting is not None:
            files.append(_file(f"{_PROGRAMS}{name}", _script(_text(f"{name}.sh")), "0755"))
            files.append(_file(f"{_UNITS}{name}.service", _text(f"{name}.service")))
    return files


def _data(settings: BootSettings) -> str:
    """The data of the scripts, as shell assignments."""
    values: dict[str, object] = {"python": " ".join(host_python.arguments())}
    if settings.local_disk is not None:
        values |= {f"local_disk_{name}": value for name, value in vars(settings.local_disk).items()}
    if settings.rdma is not None:
        values |= {
            "rdma_interfaces": " ".join(settings.rdma.interfaces),
            "private_subnet": settings.rdma.private_subnet_cidr,
            "rdma_cidr": settings.rdma.rdma_cidr,
        }
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def firewall_data(networks: Iterable[str]) -> str:
    """The data of gpucluster-firewall. The role base writes the same."""
    return f"trusted_networks='{' '.join(networks)}'\n"


def _service_of_role_base(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """A script of the role base, and its unit."""
    script, unit = (_of_role_base(f"gpucluster-{name}{suffix}") for suffix in ("", ".service"))
    return _file(f"{_PROGRAMS}{name}", _script(script), "0755"), _file(f"{_UNITS}{name}.service", unit)


def _file(path: str, content: str, permissions: str = "") -> dict[str, str]:
    """A file; without permissions it has 0644 (cloud-init's default)."""
    assert re.fullmatch(r"\S.*\n", content, re.DOTALL), f"{path} can't be a literal block"
    return {"path": path, **({"permissions": permissions} if permissions else {}), "content": content}


def _script(text: str) -> str:
    """A script without comments, indentation and empty lines, because user data is limited.

    The role base has the same two filters.

    Compression would save more, but gives other bytes with other versions of zlib.
    """
    return re.sub(r"\n\s+", "\n", re.sub(r"\n *#[^\n]*", "", text))


def _of_role_base(name: str) -> str:
    return (ansible_dir() / "roles" / "base" / "files" / name).read_text(encoding="utf-8")


def _text(name: str) -> str:
    return resources.files("gpucluster.handover").joinpath("user_data_files", name).read_text(encoding="utf-8")
