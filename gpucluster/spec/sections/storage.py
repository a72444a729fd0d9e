"""Section `storage`: file systems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpucluster.spec.sections.fields import (
    FILE_SYSTEM_PATTERN,
    POOL_NAME_PATTERN,
    AbsolutePath,
    Address,
    Name,
    SpecPart,
)

#: The groups of hosts that `hosts` of a share names besides pools.
CONTROLLER_HOSTS, LOGIN_HOSTS = "controller", "login"

#: Gbps of a mount target (docs: Updating Mount Target Performance).
Throughput = Literal[1, 20, 40, 80]

HostGroup = Annotated[str, Field(pattern=POOL_NAME_PATTERN)]


class Home(SpecPart):
    """The file system that every machine mounts."""

    enabled: bool = Field(
        default=True,
        description="Whether there is a home share. Without it there is no directory (LDAP) either: users are "
        "local users of each host. Default: `false` with `scheduler: none`.",
    )
    mount_path: AbsolutePath = Field(
        default="/mnt/home", description="Where machines mount it; users' home directories are in it."
    )
    export_path: AbsolutePath = Field(default="/mnt/home", description="Its export path on the file server.")
    file_system_id: str | None = Field(
        default=None,
        pattern=FILE_SYSTEM_PATTERN,
        description="OCID of an existing file system of the File Storage service: a mount target and an export are "
        "created for it, and it is never deleted. `null`: a file system is created.",
        examples=["ocid1.filesystem.oc1.iad.exampleuniqueid"],
    )
    server: Address | None = Field(
        default=None,
        description="IPv4 address of an existing NFS server or mount target, which exports `export_path`: no storage "
        "is created. `null`: storage is created.",
        examples=["10.0.1.20"],
    )
    throughput_gbps: Throughput | None = Field(
        default=None,
        description="Throughput of its mount target, in Gbps. More than 1 is a high performance mount target, "
        "which Oracle bills in cycles of 30 days. `null`: it stays as it is, 1 when it is made.",
        examples=[20],
    )


class Share(SpecPart):
    """A file system besides the home share, which hosts mount as well. Its name is that of the key."""

    mount_path: AbsolutePath = Field(description="Where hosts mount it.", examples=["/mnt/data"])
    export_path: AbsolutePath | None = Field(
        default=None,
        description="Its export path on the file server. `null`: a slash and the name of the share.",
        examples=["/data"],
    )
    file_system_id: str | None = Field(
        default=None,
        pattern=FILE_SYSTEM_PATTERN,
        description="OCID of an existing file system of the File Storage service: an export is created for it, and it "
        "is never deleted. `null`: a file system is created.",
        examples=["ocid1.filesystem.oc1.iad.exampleuniqueid"],
    )
    server: Address | None = Field(
        default=None,
        description="IPv4 address of an existing NFS server or mount target, which exports `export_path`: no storage "
        "is created. `null`: storage is created.",
        examples=["10.0.1.20"],
    )
    mount_target: Literal["home", "own"] = Field(
        default="home",
        description="`home`: exported by the mount target of the home share. `own`: by one of its own, with its own "
        "throughput. No effect with `server`.",
    )
    throughput_gbps: Throughput | None = Field(
        default=None,
        description="Throughput of its own mount target, in Gbps. More than 1 is a high performance mount target, "
        "which Oracle bills in cycles of 30 days. `null`: it stays as it is, 1 when it is made. Needs "
        "`mount_target: own`.",
        examples=[20],
    )
    hosts: tuple[HostGroup, ...] | None = Field(
        default=None,
        description="The hosts that mount it: `controller`, `login` and names of pools. `null`: all of them.",
        examples=[["login", "gpu"]],
    )
    read_only: bool = Field(
        default=False,
        description="Whether hosts only read. For a file system or a server that exists: another cluster fills it.",
    )

    def is_mounted_by(self, group: str) -> bool:
        """Whether the hosts of a group mount it: `controller`, `login` or the name of a pool."""
        return self.hosts is None or group in self.hosts


class LocalDisk(SpecPart):
    """Each node's own NVMe drives as one xfs file system. No effect on shapes without NVMe drives."""

    enabled: bool = Field(default=True, description="Whether it is created, at the first boot of a node.")
    mount_path: AbsolutePath = Field(
        default="/mnt/localdisk", description="Where it is mounted. Its content is lost with the node."
    )


class Storage(SpecPart):
    """File systems."""

    home: Home = Field(default_factory=Home, description="The home share.")
    shares: dict[Name, Share] = Field(default_factory=dict, description="Further shares, by name.")
    local_disk: LocalDisk = Field(default_factory=LocalDisk, description="The nodes' own NVMe drives.")

    @property
    def existing_file_systems(self) -> dict[str, str]:
        """The OCIDs of the file systems that cluster.yml names, by their key: gpucluster never deletes them."""
        home = {"storage.home.file_system_id": self.home.file_system_id}
        further = {f"storage.shares.{name}.file_system_id": each.file_system_id for name, each in self.shares.items()}
        return {key: ocid for key, ocid in {**home, **further}.items() if ocid}

    @property
    def exported_shares(self) -> dict[str, Share]:
        """The further shares that this cluster exports: all but those of an existing server."""
        return {name: share for name, share in self.shares.items() if share.server is None}

    @property
    def mount_targets(self) -> int:
        """The number of mount targets that this cluster has."""
        own = sum(share.mount_target == "own" for share in self.exported_shares.values())
        return own + (self.home.enabled and self.home.server is None)

    @property
    def high_throughputs(self) -> tuple[int, ...]:
        """The throughput, in Gbps, of each high performance mount target of this cluster."""
        wanted = [self.home.throughput_gbps, *(share.throughput_gbps for share in self.shares.values())]
        return tuple(gbps for gbps in wanted if gbps is not None and gbps > 1)

    @property
    def created_file_systems(self) -> int:
        """The number of file systems that this cluster creates."""
        home = self.home.enabled and self.home.server is None and self.home.file_system_id is None
        return home + sum(share.file_system_id is None for share in self.exported_shares.values())


def export_path(name: str, share: Share) -> str:
    """The export path of a further share."""
    return share.export_path or f"/{name}"
