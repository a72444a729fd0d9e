"""Racks of the local cloud: fabrics from a file, and GPU memory clusters on them, with the real SDK."""

from __future__ import annotations

import json
from typing import Any

from oci.core import models

from gpucluster.localcloud.compute.memory_fabrics import FILE
from tests.localcloud.api_harness import Api
from tests.waiting import wait_for

SHAPE = "BM.GPU.GB200.4"
HOSTS = 3


def configured(api: Api, shape: str = SHAPE) -> Any:
    name = next(each for each in ("memory", "other") if each not in {v.display_name for v in vcns(api)})
    subnet = api.subnet(api.vcn(name=name), prohibit_public_ip_on_vnic=True)
    vnic = models.InstanceConfigurationCreateVnicDetails(assign_public_ip=False, subnet_id=subnet.id)
    arm = next(
        image for image in api.compute.list_images(api.tenancy, shape=shape).data if "aarch64" in image.display_name
    )
    source = models.InstanceConfigurationInstanceSourceViaImageDetails(image_id=arm.id)
    return api.configuration(shape, create_vnic_details=vnic, source_details=source)


def vcns(api: Api) -> list[Any]:
    return list(api.network.list_vcns(api.tenancy).data)


def compute_cluster(api: Api) -> Any:
    details = models.CreateComputeClusterDetails(availability_domain=api.domain, compartment_id=api.tenancy)
    return api.compute.create_compute_cluster(details).data


def racks(api: Api, *entries: dict[str, Any]) -> list[str]:
    """Give the tenancy these fabrics. Returns their OCIDs."""
    full = [{"shape": SHAPE, "hosts": HOSTS, **entry} for entry in entries]
    (api.home / FILE).write_text(json.dumps(full))
    listed = api.compute.list_compute_gpu_memory_fabrics(api.tenancy, sort_by="DISPLAYNAME", sort_order="ASC").data
    by_name = {fabric.display_name: fabric.id for fabric in listed.items}
    return [by_name[entry["name"]] for entry in entries]


def details(api: Api, fabric: str, cluster: Any, configuration: Any, size: int, **more: Any) -> Any:
    return models.CreateComputeGpuMemoryClusterDetails(
        **{
            "availability_domain": api.domain,
            "compartment_id": api.tenancy,
            "compute_cluster_id": cluster.id,
            "gpu_memory_fabric_id": fabric,
            "instance_configuration_id": configuration.id,
            "size": size,
            "display_name": "rack",
            **more,
        }
    )


def create(api: Api, *arguments: Any, **more: Any) -> Any:
    made = api.compute.create_compute_gpu_memory_cluster(details(api, *arguments, **more))
    assert made.data.lifecycle_state == "CREATING"
    ended(api, made)
    return api.wait(api.compute.get_compute_gpu_memory_cluster, made.data.id, "ACTIVE")


def ended(api: Api, response: Any, status: str = "SUCCEEDED") -> Any:
    ocid = response.headers["opc-work-request-id"]
    return wait_for(
        f"the work request is {status}",
        lambda: found if (found := api.work.get_work_request(ocid).data).status == status else None,
        interval=0.02,
        state=lambda: api.work.get_work_request(ocid).data,
    )


def resize(api: Api, memory_cluster: Any, size: int) -> Any:
    change = models.UpdateComputeGpuMemoryClusterDetails(size=size)
    return api.compute.update_compute_gpu_memory_cluster(memory_cluster.id, change)


def delete(api: Api, memory_cluster: Any) -> None:
    ended(api, api.compute.delete_compute_gpu_memory_cluster(memory_cluster.id))
    api.wait(api.compute.get_compute_gpu_memory_cluster, memory_cluster.id, "DELETED")


def instances(api: Api, memory_cluster: Any) -> list[Any]:
    return list(api.compute.list_compute_gpu_memory_cluster_instances(memory_cluster.id).data.items)


def fabric(api: Api, ocid: str) -> Any:
    return api.compute.get_compute_gpu_memory_fabric(ocid).data
