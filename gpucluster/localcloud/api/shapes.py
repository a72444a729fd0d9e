"""Shapes as the API shows them: GET /shapes, and an instance's shapeConfig. The hardware is `gpucluster.shapes`'."""

from __future__ import annotations

from functools import partial

from gpucluster import shapes
from gpucluster.localcloud import catalogue, hosts
from gpucluster.localcloud.cloud import Cloud, check_domain, timestamp
from gpucluster.localcloud.store import Json, Resource
from gpucluster.localcloud.wire import CORE, ApiError, Call, Reply, Route, invalid, page, required

_NUMA = ("NPS0", "NPS1", "NPS2", "NPS4")
_VM_PLATFORMS = ("AMD_VM", "INTEL_VM")
_FLEX_GB_PER_OCPU = 16  # what OCI gives a flexible shape for each OCPU when no memory is asked for


def known_shape(name: object) -> shapes.Shape:
    """The shape of that name; 404 as OCI answers for one that the tenancy does not have."""
    shape = shapes.catalogue().get(str(name))
    if shape is None:
        raise ApiError(
            404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: shape {name}"
        )
    return shape


def shape_config(name: str, wish: Json) -> Json:
    """The shapeConfig that an instance shows: the wish for flexible shapes, the hardware for fixed ones."""
    shape = known_shape(name)
    if shape.flex:
        if "ocpus" not in wish:
            raise invalid(f"shapeConfig.ocpus is required for the flexible shape {name}")
        ocpus = float(wish["ocpus"])
        memory = float(wish.get("memoryInGBs") or ocpus * _FLEX_GB_PER_OCPU)
        limits = shape.flex_limits
        if limits and not (1 <= ocpus <= limits.ocpus_max and ocpus <= memory <= limits.memory_gb_max):
            raise invalid(
                f"shapeConfig of {name} must be 1 to {limits.ocpus_max} OCPUs with at least 1 GB each"
                f" and at most {limits.memory_gb_max} GB"
            )
    else:
        ocpus, memory = _fixed_size(shape)
    return {**_facts(shape), "ocpus": ocpus, "memoryInGBs": memory, "vcpus": int(ocpus * shape.threads_per_core)}


def check_platform(name: str, wish: Json | None) -> None:
    """Refuse a platformConfig that is not one of the shape's (docs: LaunchInstancePlatformConfig)."""
    if wish is None:
        return
    shape = known_shape(name)
    types = (shape.platform_config_type,) if shape.platform_config_type else _VM_PLATFORMS
    if wish.get("type") not in types or (not shape.platform_config_type and name.startswith("BM.")):
        raise invalid(f"platformConfig.type {wish.get('type')} is not supported by shape {name}")
    numa = wish.get("numaNodesPerSocket")
    if numa is not None and (numa not in _NUMA or not shape.platform_config_type):
        raise invalid(f"platformConfig.numaNodesPerSocket {numa} is not supported by shape {name}")


def _fixed_size(shape: shapes.Shape) -> tuple[float, float]:
    cores = (shape.sockets or 1) * (shape.cores_per_socket or 1)
    return float(cores), float(shape.memory_gib or 0)


def _facts(shape: shapes.Shape) -> Json:
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


def _summary(shape: shapes.Shape) -> Json:
    ocpus, memory = _fixed_size(shape)
    body: Json = {
        **_facts(shape),
        "shape": shape.name,
        "ocpus": ocpus,
        "memoryInGBs": memory,
        "isFlexible": shape.flex,
        "rdmaPorts": len(shape.rdma_devices),
        "rdmaBandwidthInGbps": (shape.rdma_link_gbps or 0) * len(shape.rdma_devices),
        "networkPorts": 1,
        "isSubcore": False,
        "isLiveMigrationSupported": False,
        "isBilledForStoppedInstance": bool(shape.gpus),
        "billingType": "PAID",
        "quotaNames": [name for name in (shape.limit_name, shape.memory_limit_name) if name],
        "resizeCompatibleShapes": [],
        "recommendedAlternatives": [],
    }
    if shape.flex_limits:
        limits = shape.flex_limits
        body["ocpuOptions"] = {"min": 1.0, "max": float(limits.ocpus_max)}
        body["memoryOptions"] = {
            "minInGBs": 1.0,
            "maxInGBs": float(limits.memory_gb_max),
            "defaultPerOcpuInGBs": float(_FLEX_GB_PER_OCPU),
            "minPerOcpuInGBs": 1.0,
            "maxPerOcpuInGBs": float(limits.memory_gb_per_ocpu_max),
        }
    if shape.platform_config_type:
        body["platformConfigOptions"] = {
            "type": shape.platform_config_type,
            "numaNodesPerSocketPlatformOptions": {"allowedValues": list(_NUMA), "defaultValue": "NPS1"},
            "symmetricMultiThreadingOptions": {"allowedValues": [True, False], "isDefaultEnabled": True},
        }
    return body


def _list(cloud: Cloud, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    if call.query.get("availabilityDomain"):
        check_domain(call.query)
    wanted = call.query.get("shape")
    image = call.query.get("imageId")
    fitting = catalogue.shapes_of(cloud.live("image", image)) if image else list(shapes.catalogue())
    rows = [
        Resource(name, "shape", _summary(shape), seq=number)
        for number, (name, shape) in enumerate(shapes.catalogue().items(), start=1)
        if wanted in (None, "", name) and name in fitting
    ]
    return page(rows, call)


def _capacity_report(cloud: Cloud, call: Call) -> Reply:
    """Whether a launch would find a host just now. It promises nothing, there as here."""
    body = call.body()
    required(body, "compartmentId", "availabilityDomain", "shapeAvailabilities")
    if body["compartmentId"] != cloud.identity.tenancy:
        raise invalid("compartmentId must be the root compartment")
    check_domain(body)
    domain = body["availabilityDomain"]
    wanted = [{name: value for name, value in one.items() if value is not None} for one in body["shapeAvailabilities"]]
    report = {
        "compartmentId": body["compartmentId"],
        "availabilityDomain": domain,
        "timeCreated": timestamp(),
        "shapeAvailabilities": [{**one, **_availability(cloud, one, domain)} for one in wanted],
    }
    return Reply(report)


def _availability(cloud: Cloud, wish: Json, domain: str) -> Json:
    required(wish, "instanceShape")
    shape = str(wish["instanceShape"])
    if shape not in shapes.catalogue():
        return {"availabilityStatus": "HARDWARE_NOT_SUPPORTED", "availableCount": 0}
    count = 0 if cloud.faults.out_of_capacity(shape, domain) else hosts.free(cloud, shape, domain)
    return {"availabilityStatus": "OUT_OF_HOST_CAPACITY" if count == 0 else "AVAILABLE", "availableCount": count}


def routes(cloud: Cloud) -> list[Route]:
    """The catalogue, and what of it is free."""
    return [
        Route("GET", f"{CORE}/shapes", "ListShapes", partial(_list, cloud)),
        Route(
            "POST", f"{CORE}/computeCapacityReports", "CreateComputeCapacityReport", partial(_capacity_report, cloud)
        ),
    ]
