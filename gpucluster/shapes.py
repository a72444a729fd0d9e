"""The hardware of every shape, read once from shapes.toml, and the values of Slurm's node definition."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from gpucluster.errors import InputError
from gpucluster.text import did_you_mean

MIB_PER_GIB = 1024

#: The part of a node's memory that Slurm must not give to jobs: it holds the kernel, daemons and page tables, and Slurm
#: drains a node that reports less memory than its configuration has. 3 %, at least 2 GiB, never more than half.
OS_RESERVE_FRACTION = 0.03
OS_RESERVE_MIN_MIB = 2 * MIB_PER_GIB

#: PCIe lanes of each NVIDIA or AMD GPU. STACK's health check expects them on every shape.
GPU_PCIE_WIDTH = 16

#: Hosts of a rack that share an NVLink fabric (Oracle's page "GPU Memory Cluster and Memory Fabric": NVLink 72).
MEMORY_FABRIC_HOSTS = 18

#: NCCL settings that STACK and OKE (see shapes.toml) use on every shape with an RDMA network: the GID index of RoCE
#: version 2 over IPv4, the lossless traffic class of the network, and NCCL's own choice of CPU cores.
_NCCL_ON_RDMA: Mapping[str, int | str] = MappingProxyType(
    {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_GID_INDEX": 3,
        "NCCL_IB_SL": 0,
        "NCCL_IB_TC": 41,
        "NCCL_IGNORE_CPU_AFFINITY": 1,
    }
)


#: Who makes the GPUs of a shape; without meaning where it has none.
GpuVendor = Literal["nvidia", "amd"]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BusBandwidth(_Fact):
    """Lowest acceptable all_reduce bus bandwidth: `fail` in GB/s, on one node (NVLink) or two (RDMA network)."""

    nodes: Literal[1, 2]
    algorithm: Literal["default", "ring"]
    fail: PositiveInt


class MeasuredBandwidth(_Fact):
    """The all_reduce bus bandwidth in GB/s that others have measured on healthy hardware. It is not their limit."""

    nodes: Literal[1, 2]
    algorithm: Literal["default", "ring"]
    gb_per_s: PositiveFloat


class Flex(_Fact):
    """Limits of a flexible shape. The minimum is 1 OCPU, and 1 GB of memory per OCPU."""

    ocpus_max: PositiveInt
    memory_gb_max: PositiveInt
    memory_gb_per_ocpu_max: PositiveInt


class Shape(_Fact):
    """One shape. shapes.toml gives the source of each value.

    `limit_name` is the name of the service limit, and quota, of OCI's service `compute`.
    For a flexible shape `sockets`, `cores_per_socket` and `memory_gib` are None: cluster.yml sets them for each pool.
    """

    name: str
    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    gpus: NonNegativeInt = 0
    gres_type: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")
    gpu_vendor: GpuVendor = "nvidia"
    memory_fabric: bool = False
    """Whether its hosts share an NVLink fabric: OCI launches them in a GPU memory cluster only."""
    mig_gpu: str = ""
    """Its GPUs in `mig.catalogue()`, which has what they can be divided into; "" where they can't."""
    gpu_device_files: tuple[str, ...] = Field(default=(), validate_default=True)
    nvlinks: NonNegativeInt = 0
    nvlink_gb_per_s: NonNegativeInt = 0
    fabric_manager: bool = False
    sockets: PositiveInt | None = None
    cores_per_socket: PositiveInt | None = None
    threads_per_core: PositiveInt
    memory_gib: PositiveInt | None = None
    nvme_count: NonNegativeInt
    limit_name: str = Field(pattern=r"^[a-z0-9-]+-count$")
    rdma_devices: tuple[str, ...] = ()
    rdma_interfaces: tuple[str, ...] = ()
    rdma_pci: tuple[str, ...] = ()
    rdma_link_gbps: PositiveInt | None = None
    frontend_devices: tuple[str, ...] = ()
    platform_config_type: str | None = None
    flex_limits: Flex | None = Field(default=None, alias="flex")
    busbw: tuple[BusBandwidth, ...] = ()
    busbw_measured: tuple[MeasuredBandwidth, ...] = ()
    ib_write_gbps: PositiveInt | None = None
    ib_write_lat_us: PositiveInt | None = None
    nccl: Mapping[str, int | str] = Field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    note: str = ""

    @field_validator("nccl")
    @classmethod
    def _for_every_job(cls, settings: Mapping[str, int | str]) -> Mapping[str, int | str]:
        """They are in /etc/nccl.conf, for all collectives of all jobs. Source: NCCL's release notes, 2.24.3."""
        wrong = sorted({"NCCL_ALGO", "NCCL_PROTO"} & settings.keys())
        if wrong:
            reason = "NCCL from 2.24 on ends with an error where a collective does not have it; a benchmark may set it"
            raise ValueError(f"{', '.join(wrong)}: {reason}")
        return settings

    @field_validator("gpu_device_files")
    @classmethod
    def _nvidia_by_default(cls, files: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if files or info.data.get("gpu_vendor") != "nvidia":
            return files
        return tuple(f"/dev/nvidia{index}" for index in range(info.data.get("gpus", 0)))

    @property
    def flex(self) -> bool:
        """Whether cluster.yml must set the number of OCPUs and the memory."""
        return self.flex_limits is not None

    @property
    def rdma(self) -> bool:
        """Whether its instances can be in a cluster network or compute cluster."""
        return bool(self.rdma_devices)

    @property
    def rdma_pci_addresses(self) -> tuple[str, ...]:
        """Where its RDMA interfaces are on the PCI bus, `0000:0c:00.1`; empty if no source states it."""
        return self.rdma_pci or tuple(map(_pci_address, self.rdma_interfaces))

    @property
    def has_nvidia_gpus(self) -> bool:
        """Whether NVIDIA's driver, container toolkit and tools apply."""
        return self.gpus > 0 and self.gpu_vendor == "nvidia"

    @property
    def has_amd_gpus(self) -> bool:
        """Whether AMD's driver applies, and images with it."""
        return self.gpus > 0 and self.gpu_vendor == "amd"

    @property
    def memory_limit_name(self) -> str | None:
        """The second limit of a flexible shape, on memory in GB; None for a fixed shape."""
        return self.limit_name.replace("-core-", "-memory-") if self.flex else None

    def limit_use(self, ocpus: float | None = None) -> float:
        """How much of `limit_name` one instance uses: its OCPUs where the limit counts cores, else its GPUs.

        Args:
            ocpus: OCPUs of an instance of a flexible shape.
        """
        if "-core-" not in self.limit_name:
            return float(self.gpus)
        return float((self.sockets or 0) * (self.cores_per_socket or 0) if ocpus is None else ocpus)

    @property
    def memory_mib(self) -> int | None:
        """Memory as sold, in MiB; None for a flexible shape."""
        return None if self.memory_gib is None else self.memory_gib * MIB_PER_GIB

    @property
    def nccl_ib_hca(self) -> str | None:
        """The value of NCCL_IB_HCA; with the leading `=` NCCL compares whole names (mlx5_1 is not mlx5_10)."""
        return "=" + ",".join(self.rdma_devices) if self.rdma_devices else None

    @property
    def nccl_environment(self) -> dict[str, str]:
        """The environment variables of NCCL (on AMD: RCCL) for this shape. Without GPUs on RDMA: only its own."""
        if not (self.gpus and self.rdma_devices):
            return {name: str(value) for name, value in self.nccl.items()}
        settings = {**_NCCL_ON_RDMA, "NCCL_IB_HCA": self.nccl_ib_hca, **self.nccl}
        return {name: str(value) for name, value in settings.items()}


def _pci_address(interface: str) -> str:
    """The address that the name of an interface has: enp12s0f1 is 0000:0c:00.1."""
    bus, slot, function = map(int, interface.removeprefix("enp").replace("f", "s").split("s"))
    return f"0000:{bus:02x}:{slot:02x}.{function}"


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Shape]:
    """Every shape by its name, in the order of shapes.toml."""
    text = resources.files("gpucluster").joinpath("shapes.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: Shape.model_validate({"name": name, **facts}) for name, facts in tomllib.loads(text).items()}
    )


def hint_for_unknown(name: str) -> str:
    """A hint for a name that is not in the catalogue: up to three with a similar spelling, else all of them."""
    return did_you_mean(name, catalogue(), most=3) or f"Known: {', '.join(catalogue())}"


def get(name: str) -> Shape:
    """The shape of that name.

    Raises:
        InputError: there is none; the hint has names with a similar spelling.
    """
    try:
        return catalogue()[name]
    except KeyError:
        raise InputError(f"unknown shape {name!r}", hint=hint_for_unknown(name)) from None


def real_memory_mib(memory_mib: int) -> int:
    """The part of `memory_mib` that Slurm may give to jobs (RealMemory)."""
    reserve = max(int(memory_mib * OS_RESERVE_FRACTION), OS_RESERVE_MIN_MIB)
    return memory_mib - min(reserve, memory_mib // 2)


def slurm_node(
    shape: Shape, ocpus: int | None = None, memory_gb: int | None = None, *, smt: bool = True
) -> dict[str, int | str | None]:
    """The values of a NodeName line: Sockets, CoresPerSocket, ThreadsPerCore, RealMemory (MiB), Gres or None.

    Args:
        ocpus: cores of a flexible shape; such a machine shows one socket.
        memory_gb: memory of a flexible shape.
        smt: False where the firmware setting disables simultaneous multithreading.
    """
    sockets, cores, memory_mib = shape.sockets, shape.cores_per_socket, shape.memory_mib
    if shape.flex:
        if ocpus is None or memory_gb is None:
            raise InputError(f"{shape.name} is a flexible shape", hint="Set ocpus and memory_gb")
        sockets, cores, memory_mib = 1, ocpus, memory_gb * MIB_PER_GIB
    assert sockets is not None
    assert cores is not None
    assert memory_mib is not None
    return {
        "Sockets": sockets,
        "CoresPerSocket": cores,
        "ThreadsPerCore": shape.threads_per_core if smt else 1,
        "RealMemory": real_memory_mib(memory_mib),
        "Gres": f"gpu:{shape.gres_type}:{shape.gpus}" if shape.gpus else None,
    }
