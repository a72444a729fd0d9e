"""Sections `controller`, `login` and `pools`: the machines and their images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from pydantic import Field

from gpucluster import mig, shapes
from gpucluster.node_agent.rules import mig as mig_rules
from gpucluster.spec.sections.fields import (
    IMAGE_PATTERN,
    MEMORY_FABRIC_PATTERN,
    POOL_NAME_PATTERN,
    RESERVATION_PATTERN,
    TITLE_PATTERN,
    WORD_PATTERN,
    Count,
    Gigabytes,
    GpuIndex,
    InstanceCount,
    LoginCount,
    Number,
    SpecPart,
    UserName,
    VolumeUnits,
)

#: Of the controller and of login nodes, where the file names none.
CONTROLLER_SHAPE = "VM.Standard.E5.Flex"

PoolKind = Literal["cluster_network", "compute_cluster", "gpu_memory_cluster", "instances", "node_pool"]


class Image(SpecPart):
    """An image, given in one of four ways: operating system and version, display name, marketplace listing, or OCID."""

    operating_system: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Operating system, as OCI's list of images names it: `Oracle Linux`, `Canonical Ubuntu`, `Debian`. "
        "With `version`: its newest platform image that is compatible with the shape.",
        examples=["Canonical Ubuntu"],
    )
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description='Version of the operating system, in quotes: `"24.04"`.',
        examples=["24.04"],
    )
    name: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Exact display name: of a custom image of the compartment, or of one build of a platform image, "
        "which OCI lists only until three newer builds are published.",
        examples=["Canonical-Ubuntu-24.04-2026.02.28-0-6.8-DOCA-OFED-3.2.1-GPU-580-OPEN-CUDA-13.0-2026.03.13-0"],
    )
    listing: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Display name or OCID of a listing of partner images in the marketplace. gpucluster accepts its "
        "terms and subscribes to it.",
        examples=["Oracle Linux - GPU Cluster Networking Image"],
    )
    listing_version: str | None = Field(
        default=None,
        pattern=TITLE_PATTERN,
        max_length=255,
        description="Version of the listing, or a pattern in which `*` stands for any text: the newest that matches. "
        "`null`: the newest. Versions for the GPUs of another vendor are left out.",
        examples=["*-GPU-570-OPEN-*"],
    )
    ocid: str | None = Field(
        default=None,
        pattern=IMAGE_PATTERN,
        description="OCID of an image, such as a custom image.",
        examples=["ocid1.image.oc1.iad.exampleuniqueid"],
    )
    make_compatible: bool = Field(
        default=False,
        description="Whether the shape is added to the compatible shapes of the image `ocid`. Custom images only.",
    )
    login_user: UserName = Field(
        default="",
        description="User of the image that ssh logs in as. Default by operating system: `opc`, `ubuntu`, `debian`. "
        "Required where `operating_system` is not set.",
        examples=["opc"],
    )


class Platform(SpecPart):
    """Firmware settings of a bare metal machine. Settings that are `null` are not sent."""

    numa_nodes_per_socket: Literal["NPS0", "NPS1", "NPS2", "NPS4"] | None = Field(
        default=None,
        description="NUMA nodes per socket (NPS0: one for all sockets). `null`: the default of the shape.",
    )
    smt: bool | None = Field(
        default=None,
        description="Simultaneous multithreading: two threads per core. `null`: the default of the shape.",
    )


class MigGroup(SpecPart):
    """GPUs of each node that are divided alike, in the form of NVIDIA's mig-parted."""

    devices: tuple[GpuIndex, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Numbers of the GPUs as nvidia-smi counts them, from 0. `null`: each GPU of the node.",
        examples=[[0, 1]],
    )
    mig_devices: dict[str, InstanceCount] = Field(
        min_length=1,
        description="Instances of each of these GPUs: their number by the name of their profile, as `nvidia-smi mig "
        "-lgip` lists them. That name is Slurm's type of an instance, and the end of its resource in Kubernetes: "
        "`nvidia.com/mig-1g.10gb`.",
        examples=[{"1g.10gb": 7}],
    )


class GpuDivision(SpecPart):
    """How the GPUs of a pool's nodes are used."""

    mig: tuple[MigGroup, ...] = Field(
        default=(),
        max_length=16,
        description="GPUs that are divided (NVIDIA's Multi-Instance GPU), and into what. A GPU that no entry names "
        "stays whole. Default: none is divided.",
    )


class Machine(SpecPart):
    """Keys that the controller, the login nodes and the nodes of a pool have in common."""

    shape: str
    ocpus: Number | None = Field(
        default=None, description="Cores. Required for flexible shapes, refused for others.", examples=[4]
    )
    memory_gb: Number | None = Field(
        default=None, description="Memory in GB. Required for flexible shapes, refused for others.", examples=[32]
    )
    boot_volume_gb: Gigabytes = Field(default=256, description="Size of the boot volume in GB.")
    boot_volume_vpus_per_gb: VolumeUnits = Field(
        default=10,
        multiple_of=10,
        description="Volume performance units per GB of the boot volume: 10 balanced, 20 higher, 30 to 120 ultra high.",
    )
    # Never None in a loaded spec: with_defaults() fills it in, or the rules refuse the file.
    image: Image = Field(
        default_factory=cast("Callable[[], Image]", lambda: None),
        description="Image. Required with provider oci; Debian 13 with provider local.",
    )


class ControllerSpec(Machine):
    """The machine that always exists: Slurm's controller, LDAP server and, without login nodes, login host."""

    shape: str = Field(default=CONTROLLER_SHAPE, description="Shape.", examples=[CONTROLLER_SHAPE])
    state_volume_gb: Gigabytes | None = Field(
        default=None,
        description="Size in GB of a block volume for the controller's state: Slurm's queue and accounting, the "
        "directory, CAs and keys. It outlives the controller: see docs/how-to/controller.md. It can only be made "
        "larger. `null`: the state is on the boot volume, and is lost with it.",
        examples=[50],
    )
    standby: bool = Field(
        default=False,
        description="Whether a second host of the same shape and image is ready to go on with the controller's state "
        "within a minute: see docs/how-to/standby.md. Needs `state_volume_gb`.",
    )
    automatic_failover: bool = Field(
        default=False,
        description="Whether the standby goes on by itself when the controller is lost. The controller's permissions "
        "in the cloud then include to stop instances: see docs/how-to/standby.md. Needs `standby`.",
    )
    failover_after_seconds: int = Field(
        default=15,
        ge=10,
        le=3600,
        description="With `automatic_failover`: for how long nothing of the controller must have answered before the "
        "standby asks other hosts and the cloud, and goes on.",
    )

    @property
    def has_state_volume(self) -> bool:
        """Whether its state has a volume of its own."""
        return self.state_volume_gb is not None


class LoginSpec(Machine):
    """Login nodes: hosts on which users log in, instead of the controller. They run no jobs."""

    count: LoginCount = Field(
        default=0,
        description="Number of login nodes, `<name>-login-<n>`. With one or more, only operators log in to the "
        "controller. `0`: users log in to the controller.",
        examples=[1],
    )
    shape: str = Field(default=CONTROLLER_SHAPE, description="Shape.", examples=[CONTROLLER_SHAPE])


class PoolSpec(Machine):
    """Nodes of one shape, in one Slurm partition."""

    shape: str = Field(description="Shape of every node.", examples=["BM.GPU4.8"])
    count: Count = Field(default=0, description="Number of permanent nodes.", examples=[2])
    max_count: Count = Field(
        default=0,
        description="Highest number of nodes; those above `count` exist while jobs need them. Default: `count`.",
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
        default=False, description="Whether jobs that name no partition run here. Default: the first pool."
    )
    rdma: bool | None = Field(
        default=None,
        description="Whether its nodes are in an RDMA network. `null`: if the shape has RDMA; `false`: no.",
    )
    rdma_addressing: Literal["plugin", "cloud-init"] = Field(
        default="plugin",
        description="What assigns addresses to RDMA interfaces. `plugin`: the Oracle Cloud Agent of the image. "
        "`cloud-init`: fixed addresses of `network.rdma_cidr`, for images without that plugin.",
    )
    gpus: GpuDivision = Field(default_factory=GpuDivision, description="How the GPUs are used.")
    platform: Platform = Field(default_factory=Platform, description="Firmware settings. Bare metal only.")
    capacity_reservation_id: str | None = Field(
        default=None,
        pattern=RESERVATION_PATTERN,
        description="OCID of a capacity reservation from which the nodes are launched.",
        examples=["ocid1.capacityreservation.oc1.iad.exampleuniqueid"],
    )
    memory_fabric_id: str | None = Field(
        default=None,
        pattern=MEMORY_FABRIC_PATTERN,
        description="OCID of the GPU memory fabric, the rack, that the pool is in. For shapes of GB200 and GB300.",
        examples=["ocid1.computegpumemoryfabric.oc1.iad.exampleuniqueid"],
    )
    preemptible: bool = Field(
        default=False,
        description="Whether its nodes are preemptible instances, at half the price: OCI ends them whenever it needs "
        "the capacity, and Slurm runs their jobs again. Elastic nodes of VM shapes only.",
    )
    managed: bool = Field(
        default=False,
        description="With `kubernetes.control_plane: oke`: whether its nodes are a node pool, which OKE manages and "
        "gpucluster does not configure. `false`: they are instances that gpucluster configures, and that join.",
    )
    removed_nodes: tuple[str, ...] = Field(
        default=(),
        max_length=10_000,
        description="Names of permanent nodes that must not exist, such as `compute-2`: the pool's `count` nodes have "
        "the first names that are not listed here.",
        examples=[["compute-2"]],
    )

    @property
    def uses_rdma(self) -> bool:
        """Whether its nodes are in an RDMA network."""
        return self.hardware.rdma and self.rdma is not False

    @property
    def hardware(self) -> shapes.Shape:
        """The shape's facts."""
        return shapes.get(self.shape)

    @property
    def mig_parts(self) -> tuple[str, ...]:
        """What each GPU of a node is divided into (`node_agent.rules.mig`), "" for a whole one; () if none is."""
        if not self.gpus.mig:
            return ()
        gpu = mig.catalogue()[self.hardware.mig_gpu]
        parts = [""] * self.hardware.gpus
        for group in self.gpus.mig:
            part = mig_rules.text(gpu.place(group.mig_devices))
            for index in range(self.hardware.gpus) if group.devices is None else group.devices:
                parts[index] = part
        return tuple(parts)

    @property
    def launched_together(self) -> bool:
        """Whether OCI launches and names its permanent nodes, which Terraform knows by their number alone."""
        return self.kind in ("cluster_network", "gpu_memory_cluster")

    @property
    def elastic(self) -> bool:
        """Whether some of its nodes exist only while jobs need them."""
        return self.max_count > self.count

    @property
    def elastic_count(self) -> int:
        """Highest number of its elastic nodes."""
        return max(self.max_count - self.count, 0)

    @property
    def kind(self) -> PoolKind:
        """The OCI resource that contains its nodes.

        Members of a compute cluster are launched one by one, so elastic RDMA pools need one (also while they are
        empty); a cluster network is for pools with permanent nodes only. Without RDMA neither is needed. A node pool
        belongs to Kubernetes Engine, which makes its nodes. Hosts of a GPU memory fabric are launched in a GPU memory
        cluster only.
        """
        if self.managed:
            return "node_pool"
        if self.hardware.memory_fabric:
            return "gpu_memory_cluster"
        if not self.uses_rdma:
            return "instances"
        return "cluster_network" if self.count and not self.elastic else "compute_cluster"
