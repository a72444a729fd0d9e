"""Section `storage`: file systems."""

from __future__ import annotations

from pydantic import Field

from gpucluster.spec.sections.fields import FILE_SYSTEM_PATTERN, AbsolutePath, Address, SpecPart


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


class LocalDisk(SpecPart):
    """Each node's own NVMe drives as one xfs file system. No effect on shapes without NVMe drives."""

    enabled: bool = Field(default=True, description="Whether it is created, at the first boot of a node.")
    mount_path: AbsolutePath = Field(
        default="/mnt/localdisk", description="Where it is mounted. Its content is lost with the node."
    )


class Storage(SpecPart):
    """File systems."""

    home: Home = Field(default_factory=Home, description="The home share.")
    local_disk: LocalDisk = Field(default_factory=LocalDisk, description="The nodes' own NVMe drives.")
