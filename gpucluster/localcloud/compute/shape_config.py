"""The configuration of an instance's shape (shapeConfig, platformConfig), checked and completed.

The hardware facts are those of `gpucluster.shapes`.
"""

from __future__ import annotations

from gpucluster import shapes
from gpucluster.localcloud.state.store import Json
from gpucluster.localcloud.state.wire import ApiError, invalid

NUMA_SETTINGS = ("NPS0", "NPS1", "NPS2", "NPS4")
_VM_PLATFORMS = ("AMD_VM", "INTEL_VM")
FLEX_GB_PER_OCPU = 16  # OCI's default for each OCPU of a flexible shape


def known_shape(name: object) -> shapes.Shape:
    """The shape of this name. Raises 404, as OCI does for a shape that the tenancy does not have."""
    shape = shapes.catalogue().get(str(name))
    if shape is None:
        raise ApiError(
            404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: shape {name}"
        )
    return shape


def shape_config(name: str, request: Json) -> Json:
    """The shapeConfig of an instance: as requested for a flexible shape, from the hardware for a fixed one."""
    shape = known_shape(name)
    if shape.flex:
        if "ocpus" not in request:
            raise invalid(f"shapeConfig.ocpus is required for the flexible shape {name}")
        ocpus = float(request["ocpus"])
        memory = float(request.get("memoryInGBs") or ocpus * FLEX_GB_PER_OCPU)
        limits = shape.flex_limits
        if limits and not (1 <= ocpus <= limits.ocpus_max and ocpus <= memory <= limits.memory_gb_max):
            raise invalid(
                f"shapeConfig of {name} must be 1 to {limits.ocpus_max} OCPUs with at least 1 GB each"
                f" and at most {limits.memory_gb_max} GB"
            )
    else:
        ocpus, memory = fixed_size(shape)
    return {
        **hardware_facts(shape),
        "ocpus": ocpus,
        "memoryInGBs": memory,
        "vcpus": int(ocpus * shape.threads_per_core),
    }


def check_platform(name: str, platform: Json | None) -> None:
    """Raise 400 if the shape does not support a platformConfig (docs: LaunchInstancePlatformConfig)."""
    if platform is None:
        return
    shape = known_shape(name)
    types = (shape.platform_config_type,) if shape.platform_config_type else _VM_PLATFORMS
    if platform.get("type") not in types or (not shape.platform_config_type and name.startswith("BM.")):
        raise invalid(f"platformConfig.type {platform.get('type')} is not supported by shape {name}")
    numa = platform.get("numaNodesPerSocket")
    if numa is not None and (numa not in NUMA_SETTINGS or not shape.platform_config_type):
        raise invalid(f"platformConfig.numaNodesPerSocket {numa} is not supported by shape {name}")


def fixed_size(shape: shapes.Shape) -> tuple[float, float]:
    """OCPUs and memory in GB of a shape that is not flexible."""
    cores = (shape.sockets or 1) * (shape.cores_per_socket or 1)
    return float(cores), float(shape.memory_gib or 0)


def hardware_facts(shape: shapes.Shape) -> Json:
    """The members of ListShapes and shapeConfig that follow from the hardware."""
    return {
        "gpus": shape.gpus,
        "gpuDescription": f"{shape.gpus} x {shape.gres_type} (emulated)" if shape.gpus else None,
        "localDisks": shape.nvme_count,
        "localDiskDescription": f"{shape.nvme_count} x NVMe (emulated)" if shape.nvme_count else None,
        "localDisksTotalSizeInGBs": None,
        "maxVnicAttachments": 2,
        "networkingBandwidthInGbps": float(max(1, len(shape.frontend_devices)) * 50),
        "processorDescription": f"{shape.architecture}, emulated by a container of this machine",
    }
