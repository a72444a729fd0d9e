"""Shapes: the list, and capacity reports. The hardware facts are those of `gpucluster.shapes`."""

from __future__ import annotations

from functools import partial

from gpucluster import shapes
from gpucluster.localcloud.compute import capacity, image_catalogue
from gpucluster.localcloud.compute.shape_config import FLEX_GB_PER_OCPU, NUMA_SETTINGS, fixed_size, hardware_facts
from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.region import check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, Call, Reply, invalid, page, required


def _summary(shape: shapes.Shape) -> Json:
    ocpus, memory = fixed_size(shape)
    body: Json = {
        **hardware_facts(shape),
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
            "defaultPerOcpuInGBs": float(FLEX_GB_PER_OCPU),
            "minPerOcpuInGBs": 1.0,
            "maxPerOcpuInGBs": float(limits.memory_gb_per_ocpu_max),
        }
    if shape.platform_config_type:
        body["platformConfigOptions"] = {
            "type": shape.platform_config_type,
            "numaNodesPerSocketPlatformOptions": {"allowedValues": list(NUMA_SETTINGS), "defaultValue": "NPS1"},
            "symmetricMultiThreadingOptions": {"allowedValues": [True, False], "isDefaultEnabled": True},
        }
    return body


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    if call.query.get("availabilityDomain"):
        check_domain(call.query)
    shape_name = call.query.get("shape")
    image = call.query.get("imageId")
    fitting = image_catalogue.shapes_of(cloud.live("image", image)) if image else list(shapes.catalogue())
    rows = [
        Resource(name, "shape", _summary(shape), seq=number)
        for number, (name, shape) in enumerate(shapes.catalogue().items(), start=1)
        if shape_name in (None, "", name) and name in fitting
    ]
    return page(rows, call)


def _capacity_report(cloud: CloudState, call: Call) -> Reply:
    """Whether a launch would find a host now. As on OCI, a report reserves nothing."""
    body = call.body()
    required(body, "compartmentId", "availabilityDomain", "shapeAvailabilities")
    if body["compartmentId"] != cloud.identity.tenancy:
        raise invalid("compartmentId must be the root compartment")
    check_domain(body)
    domain = body["availabilityDomain"]
    entries = [
        {key: value for key, value in entry.items() if value is not None} for entry in body["shapeAvailabilities"]
    ]
    report = {
        "compartmentId": body["compartmentId"],
        "availabilityDomain": domain,
        "timeCreated": timestamp(),
        "shapeAvailabilities": [{**entry, **_availability(cloud, entry, domain)} for entry in entries],
    }
    return Reply(report)


def _availability(cloud: CloudState, request: Json, domain: str) -> Json:
    required(request, "instanceShape")
    shape = str(request["instanceShape"])
    if shape not in shapes.catalogue():
        return {"availabilityStatus": "HARDWARE_NOT_SUPPORTED", "availableCount": 0}
    count = 0 if cloud.faults.out_of_capacity(shape, domain) else capacity.free_hosts(cloud, shape, domain)
    return {"availabilityStatus": "OUT_OF_HOST_CAPACITY" if count == 0 else "AVAILABLE", "availableCount": count}


def routes(cloud: CloudState) -> list[ApiRoute]:
    """The shapes, and their free capacity."""
    return [
        ApiRoute("GET", f"{CORE}/shapes", "ListShapes", partial(_list, cloud)),
        ApiRoute(
            "POST", f"{CORE}/computeCapacityReports", "CreateComputeCapacityReport", partial(_capacity_report, cloud)
        ),
    ]
