"""GPU memory clusters through the real Terraform and the stand-in provider: a root with nothing but a rack, and the
product's own.

It does not prove what the real provider or OCI do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.localcloud.compute.memory_fabrics import FILE
from tests.terraform.conftest import Workspace

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = pytest.mark.slow

SHAPE = "BM.GPU.GB200.4"
RACK = "oci_core_compute_gpu_memory_cluster.rack"
INSTANCES = "/20160918/instances"
CLUSTERS, FABRICS = "/20160918/computeGpuMemoryClusters", "/20160918/computeGpuMemoryFabrics"
ROOT = """
terraform {
  required_providers {
    oci = { source = "oracle/oci" }
  }
}

variable "compartment_id" { type = string }
variable "image_id" { type = string }
variable "domain" { type = string }
variable "racks" { type = map(number) }

resource "oci_core_vcn" "this" {
  compartment_id = var.compartment_id
  cidr_blocks    = ["10.9.0.0/16"]
}

resource "oci_core_subnet" "this" {
  compartment_id             = var.compartment_id
  vcn_id                     = oci_core_vcn.this.id
  cidr_block                 = "10.9.0.0/24"
  prohibit_public_ip_on_vnic = true
}

resource "oci_core_compute_cluster" "this" {
  compartment_id      = var.compartment_id
  availability_domain = var.domain
}

resource "oci_core_instance_configuration" "this" {
  compartment_id = var.compartment_id

  instance_details {
    instance_type = "compute"

    launch_details {
      compartment_id = var.compartment_id
      shape          = "SHAPE"

      create_vnic_details {
        assign_public_ip = false
        subnet_id        = oci_core_subnet.this.id
      }

      source_details {
        source_type = "image"
        image_id    = var.image_id
      }
    }
  }
}

resource "oci_core_compute_gpu_memory_cluster" "rack" {
  for_each = var.racks

  compartment_id            = var.compartment_id
  availability_domain       = var.domain
  compute_cluster_id        = oci_core_compute_cluster.this.id
  instance_configuration_id = oci_core_instance_configuration.this.id
  gpu_memory_fabric_id      = each.key
  display_name              = "rack"
  size                      = each.value
}
"""


@pytest.fixture
def racks(cloud: LocalCloud) -> Iterator[Callable[..., list[str]]]:
    """Gives the tenancy fabrics of three hosts, and removes them at the end. Returns their OCIDs."""

    def give(*entries: Mapping[str, Any]) -> list[str]:
        full = [{"shape": SHAPE, "hosts": 3, **entry} for entry in entries]
        (cloud.home / FILE).write_text(json.dumps(full))
        there = cloud.client.items(FABRICS, {"compartmentId": cloud.credentials.tenancy})
        by_name = {fabric["displayName"]: fabric["id"] for fabric in there}
        return [by_name[entry["name"]] for entry in entries]

    yield give
    (cloud.home / FILE).unlink(missing_ok=True)


@pytest.fixture
def root(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], racks: Callable[..., list[str]], tmp_path: Path
) -> Iterator[Workspace]:
    """The root above, initialised; what it made is destroyed before the fabrics are."""
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "main.tf").write_text(ROOT.replace("SHAPE", SHAPE))
    tenancy = cloud.credentials.tenancy
    arm = cloud.client.items("/20160918/images", {"compartmentId": tenancy, "shape": SHAPE})
    image = next(image["id"] for image in arm if "aarch64" in image["displayName"])
    variables = {"compartment_id": tenancy, "image_id": image, "domain": "local:LOCAL-1-AD-1", "racks": {}}
    workspace = Workspace(folder, {**terraform_environment, **cloud.environment}, variables)
    workspace.run("init", "-input=false")
    yield workspace
    cloud.faults()
    workspace.destroy()
    assert cloud.standing(CLUSTERS) == []


def test_racks_are_made_kept_resized_and_removed(
    root: Workspace, cloud: LocalCloud, racks: Callable[..., list[str]]
) -> None:
    first, second = racks({"name": "one"}, {"name": "two"})
    root.variables["racks"] = {first: 3}
    root.apply()
    assert [each["size"] for each in cloud.standing(CLUSTERS)] == [3]
    assert root.plan().changes == []

    root.variables["racks"] = {first: 3, second: 1}
    assert root.apply().changes == [(f'{RACK}["{second}"]', "create")]
    root.variables["racks"] = {first: 2, second: 2}
    assert root.apply().changes == sorted((f'{RACK}["{each}"]', "update") for each in (first, second))
    assert root.plan().changes == []
    assert [each["size"] for each in cloud.standing(CLUSTERS)] == [2, 2]

    # An instance that was terminated by itself is missing in the next plan, which launches another one.
    rack = next(each for each in cloud.standing(CLUSTERS) if each["gpuMemoryFabricId"] == first)
    member = next(iter(cloud.client.items(f"{CLUSTERS}/{rack['id']}/instances", {})))
    cloud.client.call("DELETE", f"/20160918/instances/{member['id']}")
    cloud.wait("/20160918/instances", member["id"], "TERMINATED")
    assert root.apply().changes == [(f'{RACK}["{first}"]', "update")]
    left = [each["id"] for each in cloud.client.items(f"{CLUSTERS}/{rack['id']}/instances", {})]
    assert len(left) == 2
    assert member["id"] not in left

    root.destroy()
    assert cloud.standing(CLUSTERS) == []


def test_what_a_fabric_can_not_give_is_an_error_with_its_reason(
    root: Workspace, cloud: LocalCloud, racks: Callable[..., list[str]]
) -> None:
    (rack,) = racks({"name": "three", "unhealthy": [1]})
    root.variables["racks"] = {rack: 3}
    assert "has 2 available hosts; 3 are needed" in root.apply(check=False).errors
    cloud.faults({"operation": "BootInstance", "shape": SHAPE, "message": "The host is broken.", "after": 1})
    root.variables["racks"] = {rack: 2}
    failed = root.apply(check=False)
    assert "entity: computegpumemorycluster" in failed.errors
    assert "The host is broken." in failed.errors
    cloud.faults()
    # As with the real provider, what a failed create left is tainted, and made again.
    assert [action for _, action in root.apply().changes] == ["replace"]
    assert [each["size"] for each in cloud.standing(CLUSTERS)] == [2]


def _pool(workspace: Workspace, fabric: str, count: int) -> None:
    image = {"operating_system": "Canonical Ubuntu", "version": "24.04"}
    values = {"kind": "gpu_memory_cluster", "shape": SHAPE, "memory_fabric_id": fabric, "image": image}
    workspace.pool("rack", **values, count=count, max_count=count)


def test_a_pool_of_the_product_is_a_rack(
    workspace: Workspace, cloud: LocalCloud, racks: Callable[..., list[str]]
) -> None:
    first, second = racks({"name": "four"}, {"name": "five"})
    _pool(workspace, first, 2)
    workspace.apply()
    pool = workspace.output()["pools"]["rack"]
    (cluster,) = cloud.standing(CLUSTERS, "demo")
    assert pool["gpu_memory_cluster_id"] == cluster["id"]
    assert (cluster["size"], cluster["displayName"], cluster["gpuMemoryFabricId"]) == (2, "demo-rack", first)
    assert pool["compute_cluster_id"]
    assert (pool["cluster_network_id"], pool["instances"]) == (None, [])
    members = [each for each in cloud.standing(INSTANCES, "demo") if each["freeformTags"].get("pool") == "rack"]
    assert [each["shape"] for each in members] == [SHAPE, SHAPE]
    assert workspace.plan().changes == []

    address = 'module.pool["rack"].oci_core_compute_gpu_memory_cluster.this[0]'
    _pool(workspace, first, 3)
    assert workspace.apply().changes == [(address, "update")]
    assert workspace.plan().changes == []
    # Another key makes another instance configuration, which the cluster gets in its place.
    workspace.variables["ssh_authorized_keys"] = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 successor"]
    changes = dict(workspace.apply().changes)
    assert changes[address] == "update"
    assert workspace.plan().changes == []
    # A rack is planned for another one: the nodes are others then.
    _pool(workspace, second, 3)
    assert (address, "replace") in workspace.plan().changes

    workspace.destroy()
    assert cloud.standing(CLUSTERS) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_fabric_id": None}, "memory_fabric_id must be the OCID of a GPU memory fabric"),
        ({"max_count": 4}, "a gpu_memory_cluster has permanent nodes only"),
        ({"rdma": False}, "rdma must be true for kind cluster_network, compute_cluster and gpu_memory_cluster"),
        ({"kind": "instances", "rdma": False}, "memory_fabric_id must be the OCID of a GPU memory fabric"),
    ],
)
def test_what_the_root_refuses_of_a_rack(workspace: Workspace, changes: dict[str, Any], message: str) -> None:
    _pool(workspace, "ocid1.computegpumemoryfabric.oc1.iad.a", 2)
    workspace.pool("rack", **changes)
    assert message in workspace.plan(check=False).errors.replace("\n", " ")
