"""Sections that say which machines there are: the controller, the pools, their images and disks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from pydantic import Field

from gpucluster import shapes
from gpucluster.spec.fields import (
    FILE_SYSTEM_PATTERN,
    IMAGE_PATTERN,
    POOL_NAME_PATTERN,
    RESERVATION_PATTERN,
    TITLE_PATTERN,
    WORD_PATTERN,
    AbsolutePath,
    Address,
    Count,
    Gigabytes,
    Number,
    Part,
    UserName,
    VolumeUnits,
)

CONTROLLER_SHAPE = "VM.Standard.E5.Flex"

PoolKind = Literal["cluster_network", "compute_cluster", "instances"]


class Image(Part):
    """An image, named in one of four ways: operating system and version, display name, marketplace listing, or OCID."""

    operating_system: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Name as in OCI's catalogue of images: `Oracle Linux`, `Canonical Ubuntu`, `Debian`. With "
        "`version`: the newest platform image of it that fits the shape.",
        examples=["Canonical Ubuntu"],
    )
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description='Its version, in quotes: `"24.04"`.',
        examples=["24.04"],
    )
    name: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Exact display name of a platform image.",
        examples=["Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0"],
    )
    listing: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Display name or OCID of a listing of partner images in the marketplace; its terms are accepted "
        "and it is subscribed to.",
        examples=["Oracle Linux - GPU Cluster Networking Image"],
    )
    listing_version: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Version of the listing. `null`: the newest.",
    )
    ocid: str | None = Field(
        default=None,
        pattern=IMAGE_PATTERN,
        description="OCID of an image, such as one of your own.",
        examples=["ocid1.image.oc1.iad.exampleuniqueid"],
    )
    make_compatible: bool = Field(
        default=False,
        description="Whether the shape is added to those that the image of `ocid` fits. Custom images only.",
    )
    login_user: UserName = Field(
        default="",
        description="The user that the image lets in. Default by operating system: `opc`, `ubuntu`, `debian`. Needed "
        "where no operating system is named.",
        examples=["opc"],
    )


class Platform(Part):
    """Settings of a bare metal machine's firmware. What is not said is not sent."""

    numa_nodes_per_socket: Literal["NPS0", "NPS1", "NPS2", "NPS4"] | None = Field(
        default=None,
        description="NUMA nodes for each socket (NPS0: one for all sockets). `null`: as the shape comes.",
    )
    smt: bool | None = Field(
        default=None,
        description="Simultaneous multithreading: two threads for each core. `null`: as the shape comes.",
    )


class Machine(Part):
    """What the controller and the nodes of a pool have in common."""

    shape: str
    ocpus: Number | None = Field(
        default=None, description="Cores. Flexible shapes only, and needed there.", examples=[4]
    )
    memory_gb: Number | None = Field(
        default=None, description="Memory in GB. Flexible shapes only, and needed there.", examples=[32]
    )
    boot_volume_gb: Gigabytes = Field(default=256, description="Size of the boot volume in GB.")
    boot_volume_vpus_per_gb: VolumeUnits = Field(
        default=10,
        multiple_of=10,
        description="Performance units of the boot volume for each GB: 10 balanced, 20 higher, 30 to 120 ultra high.",
    )
    # None is never seen: derived() fills it in, or the rules refuse the file.
    image: Image = Field(
        default_factory=cast("Callable[[], Image]", lambda: None),
        description="Operating system. With provider local Debian 13 unless said; with provider oci it must be said.",
    )


class Controller(Machine):
    """The one machine that is always there: Slurm's controller, LDAP, login by ssh."""

    shape: str = Field(default=CONTROLLER_SHAPE, description="Shape.", examples=[CONTROLLER_SHAPE])


class Home(Part):
    """The file system that every machine mounts."""

    enabled: bool = Field(
        default=True,
        description="Whether there is one. Without it there is no directory, either: people are accounts of each host. "
        "Default: `slurm.enabled`.",
    )
    mount_path: AbsolutePath = Field(
        default="/mnt/home", description="Where machines mount it; users' homes lie in it."
    )
    export_path: AbsolutePath = Field(default="/mnt/home", description="Its name on the file server.")
    file_system_id: str | None = Field(
        default=None,
        pattern=FILE_SYSTEM_PATTERN,
        description="OCID of an existing file system of the File Storage service: a mount target and an export are "
        "made for it, and it is never deleted. `null`: one is created.",
        examples=["ocid1.filesystem.oc1.iad.exampleuniqueid"],
    )
    server: Address | None = Field(
        default=None,
        description="IPv4 address of an existing NFS server or mount target, which exports `export_path`: no storage "
        "is created. `null`: one is created.",
        examples=["10.0.1.20"],
    )


class LocalDisk(Part):
    """Each node's own NVMe drives as one xfs file system; without effect where the shape has none."""

    enabled: bool = Field(default=True, description="Whether it is made, at a node's first boot.")
    mount_path: AbsolutePath = Field(
        default="/mnt/localdisk", description="Where it is mounted. What lies there is gone with the node."
    )


class Storage(Part):
    """File systems."""

    home: Home = Field(default_factory=Home, description="The shared home.")
    local_disk: LocalDisk = Field(default_factory=LocalDisk, description="The nodes' own NVMe drives.")


class Pool(Machine):
    """Nodes of one shape, in one Slurm partition."""

    shape: str = Field(description="Shape of every node.", examples=["BM.GPU4.8"])
    count: Count = Field(default=0, description="Nodes that are always there.", examples=[2])
    max_count: Count = Field(
        default=0,
        description="Nodes there may be at most; those above `count` exist while jobs need them. Default: `count`.",
    )
    idle_timeout: Number = Field(
        default=600, description="Seconds without a job after which an elastic node is removed."
    )
    partition: str = Field(
        default="",
        pattern=POOL_NAME_PATTERN,
        description="Slurm partition of its nodes; pools may share one. Default: the pool's name.",
        examples=["gpu"],
    )
    availability_domain: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        description="Availability domain of its nodes. `null`: that of the cluster.",
        examples=["Uocm:US-ASHBURN-AD-2"],
    )
    default: bool = Field(
        default=False, description="Whether jobs that name no partition come here. Default: the first pool."
    )
    rdma: bool | None = Field(
        default=None,
        description="Whether its nodes stand in an RDMA network. `null`: if the shape can; `false`: plain instances.",
    )
    rdma_addressing: Literal["plugin", "cloud-init"] = Field(
        default="plugin",
        description="Who gives RDMA interfaces their addresses. `plugin`: the Oracle Cloud Agent of the image. "
        "`cloud-init`: fixed addresses of `network.rdma_cidr`, for images without that plugin.",
    )
    platform: Platform = Field(default_factory=Platform, description="Settings of the firmware. Bare metal only.")
    capacity_reservation_id: str | None = Field(
        default=None,
        pattern=RESERVATION_PATTERN,
        description="OCID of a capacity reservation that the nodes are launched from.",
        examples=["ocid1.capacityreservation.oc1.iad.exampleuniqueid"],
    )
    removed_nodes: tuple[str, ...] = Field(
        default=(),
        max_length=10_000,
        description="Names of permanent nodes that shall not exist, such as `compute-2`: the pool has `count` nodes "
        "under the first names that are not listed here.",
        examples=[["compute-2"]],
    )

    @property
    def uses_rdma(self) -> bool:
        """Whether its nodes stand in an RDMA network."""
        return self.hardware.rdma and self.rdma is not False

    @property
    def hardware(self) -> shapes.Shape:
        """The shape's facts."""
        return shapes.get(self.shape)

    @property
    def elastic(self) -> bool:
        """Whether nodes come and go."""
        return self.max_count > self.count

    @property
    def elastic_count(self) -> int:
        """How many of its nodes come and go, at most."""
        return max(self.max_count - self.count, 0)

    @property
    def kind(self) -> PoolKind:
        """What its nodes stand in.

        Members of a compute cluster come one by one, so elastic RDMA pools need that (an empty one has it too); a
        cluster network is for pools whose nodes stay. Without RDMA neither is needed.
        """
        if not self.uses_rdma:
            return "instances"
        return "cluster_network" if self.count and not self.elastic else "compute_cluster"
