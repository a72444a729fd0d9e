"""Section `kubernetes`: the scheduler of a cluster with `scheduler: kubernetes`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpucluster.spec.sections.fields import Cidr, Number, SpecPart

#: An exact release: kubeadm, kubelet and images have one version, and the skew between them counts in minor releases.
RELEASE_PATTERN = r"^1\.(2[0-9]|[3-9][0-9])\.(0|[1-9][0-9]?)$"
#: The default of `kubernetes.release`; a test compares it with `artifacts/catalogue.toml`.
NEWEST_RELEASE = "1.36.4"
#: OKE alone knows which add-ons and which of their versions it has: a file can only have names that look like theirs.
ADDON_PATTERN = r"[A-Z][A-Za-z0-9]{1,62}"
ADDON_VERSION_PATTERN = r"^v[0-9]+\.[0-9]+(\.[0-9]+)?([-+.][0-9A-Za-z][0-9A-Za-z.+-]*)?$"

ControlPlane = Literal["self", "oke"]
PodNetwork = Literal["calico", "routes"]
GpuSoftware = Literal["device-plugin", "operator", "dra-driver"]
RdmaAccess = Literal["host", "device", "sr-iov"]
AddonVersion = Annotated[str, Field(pattern=ADDON_VERSION_PATTERN, max_length=64)]
CertificateHours = Annotated[int, Field(ge=1, le=720)]


class UserQuota(SpecPart):
    """What the pods in the namespace of one user may have at the same time."""

    gpus: Number | None = Field(default=None, description="GPUs, those that are not divided.", examples=[16])
    gpu_instances: dict[str, Number] = Field(
        default_factory=dict,
        description="Instances of divided GPUs (`pools.NAME.gpus.mig`), by the name of their profile. Of a profile "
        "that is not named, any number.",
        examples=[{"1g.10gb": 14}],
    )
    cpus: Number | None = Field(default=None, description="Processors, by the requests of the pods.", examples=[256])
    memory_gb: Number | None = Field(default=None, description="Memory in GB, by the requests.", examples=[2048])
    pods: Number | None = Field(default=None, description="Pods that have not ended.", examples=[100])


class Oke(SpecPart):
    """The control plane of the Oracle Kubernetes Engine."""

    endpoint: Literal["private", "public"] = Field(
        default="private",
        description="Where its API answers. `private`: in the private subnet. `public`: at a public address, for the "
        "networks in `network.ssh_allowed_cidrs`.",
    )
    addons: dict[str, AddonVersion | None] = Field(
        default_factory=dict,
        description="Add-ons of OKE, by name, with the version that each stays at. `null`: OKE updates it. Essential "
        "add-ons are there also when they are not listed.",
        examples=[{"NvidiaGpuPlugin": None, "CertManager": "v1.17.2"}],
    )


class Kubernetes(SpecPart):
    """Kubernetes as the scheduler. It has an effect only with `scheduler: kubernetes`."""

    control_plane: ControlPlane = Field(
        default="self",
        description="`self`: kubeadm makes it on the controller. `oke`: Oracle Kubernetes Engine.",
    )
    release: str = Field(
        default=NEWEST_RELEASE,
        pattern=RELEASE_PATTERN,
        description="Release of Kubernetes, the same on every host: three numbers, 1.20.0 or newer.",
        examples=["1.34.2"],
    )
    network: PodNetwork = Field(
        default="calico",
        description="Network of the pods. `calico`: it also enforces network policies. `routes`: a bridge on each "
        "node and routes between the nodes, without any other program; it enforces no network policy. Only in the "
        "local cloud, whose network carries any address.",
    )
    pod_cidr: Cidr = Field(
        default="10.244.0.0/16",
        description="Range of the addresses of pods: a /24 for each node and the controller. It stays as it is.",
    )
    service_cidr: Cidr = Field(
        default="10.96.0.0/16",
        description="Range of the addresses of services, /12 to /24. It stays as it is.",
    )
    gpus: GpuSoftware = Field(
        default="device-plugin",
        description="What offers GPUs to pods: NVIDIA's `device-plugin`, its `operator`, or its `dra-driver`, with "
        "which pods claim devices (Dynamic Resource Allocation). The driver is always that of the host.",
    )
    rdma: RdmaAccess = Field(
        default="host",
        description="How a pod gets RDMA. `host`: it uses the network of its host. `device`: RDMA interfaces are moved "
        "into the pod, each with its device. `sr-iov`: the pod gets virtual functions.",
    )
    user_quota: UserQuota = Field(
        default_factory=UserQuota, description="What one user's pods may have at the same time."
    )
    kubeconfig_hours: CertificateHours = Field(
        default=12, description="Hours for which a kubeconfig of a user is valid."
    )
    oke: Oke = Field(default_factory=Oke, description="Settings of `control_plane: oke`.")

    @property
    def has_calico(self) -> bool:
        """Whether gpucluster brings Calico: Kubernetes Engine brings the network of its pods itself."""
        return self.network == "calico" and self.control_plane == "self"
