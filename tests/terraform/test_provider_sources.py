"""What only the real-cloud part of the root asks of the stand-in: resources without an OCID, data sources of one thing,
and two configurations of the provider; with Terraform itself, against the local cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

ROOT = """
terraform {
  required_providers {
    oci = { source = "oracle/oci" }
  }
}

variable "tenancy" { type = string }
variable "description" { type = string }
variable "allowed" { type = list(string) }

provider "oci" {
  region = "local-1"
}

provider "oci" {
  alias  = "home"
  region = "local-1"
}

resource "oci_core_vcn" "this" {
  compartment_id = var.tenancy
  cidr_blocks    = ["10.92.0.0/24"]
  dns_label      = "sources"
}

resource "oci_core_subnet" "this" {
  compartment_id = var.tenancy
  vcn_id         = oci_core_vcn.this.id
  cidr_block     = "10.92.0.0/25"
}

data "oci_core_vcn" "this" {
  vcn_id = oci_core_vcn.this.id
}

data "oci_core_subnet" "this" {
  subnet_id = oci_core_subnet.this.id
}

resource "oci_bastion_bastion" "this" {
  bastion_type                 = "STANDARD"
  compartment_id               = var.tenancy
  target_subnet_id             = oci_core_subnet.this.id
  name                         = "sources"
  client_cidr_block_allow_list = var.allowed
  max_session_ttl_in_seconds   = 10800
}

resource "oci_identity_dynamic_group" "this" {
  provider       = oci.home
  compartment_id = var.tenancy
  name           = "sources"
  description    = var.description
  matching_rule  = "ALL {instance.compartment.id = '${var.tenancy}'}"
}

resource "oci_identity_policy" "this" {
  provider       = oci.home
  compartment_id = var.tenancy
  name           = "sources"
  description    = "a test"
  statements     = ["Allow dynamic-group ${oci_identity_dynamic_group.this.name} to read instances in tenancy"]
}

data "oci_core_app_catalog_listings" "this" {
  display_name = "Oracle Linux - GPU Cluster Networking Image"
}

data "oci_core_app_catalog_listing_resource_versions" "this" {
  listing_id = data.oci_core_app_catalog_listings.this.app_catalog_listings[0].listing_id
}

locals {
  newest = data.oci_core_app_catalog_listing_resource_versions.this.app_catalog_listing_resource_versions[0]
}

resource "oci_core_app_catalog_listing_resource_version_agreement" "this" {
  listing_id               = local.newest.listing_id
  listing_resource_version = local.newest.listing_resource_version
}

resource "oci_core_app_catalog_subscription" "this" {
  compartment_id           = var.tenancy
  listing_id               = local.newest.listing_id
  listing_resource_version = local.newest.listing_resource_version
  eula_link                = oci_core_app_catalog_listing_resource_version_agreement.this.eula_link
  oracle_terms_of_use_link = oci_core_app_catalog_listing_resource_version_agreement.this.oracle_terms_of_use_link
  signature                = oci_core_app_catalog_listing_resource_version_agreement.this.signature
  time_retrieved           = oci_core_app_catalog_listing_resource_version_agreement.this.time_retrieved
}

data "oci_core_image" "this" {
  image_id = oci_core_app_catalog_subscription.this.listing_resource_id
}

output "seen" {
  value = {
    block      = data.oci_core_vcn.this.cidr_block
    label      = data.oci_core_vcn.this.dns_label
    subnet     = data.oci_core_subnet.this.cidr_block
    in_vcn     = data.oci_core_subnet.this.vcn_id == data.oci_core_vcn.this.id
    system     = data.oci_core_image.this.operating_system
    versions   = length(data.oci_core_app_catalog_listing_resource_versions.this.app_catalog_listing_resource_versions)
    bastion    = oci_bastion_bastion.this.state
    allowed    = oci_bastion_bastion.this.client_cidr_block_allow_list
    statements = oci_identity_policy.this.statements
  }
}
"""


@pytest.fixture
def sources(cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path: Path) -> Iterator[Workspace]:
    """The configuration above, initialised; what it made is destroyed."""
    (tmp_path / "main.tf").write_text(ROOT)
    variables = {"tenancy": cloud.credentials.tenancy, "description": "one", "allowed": ["127.0.0.0/8"]}
    workspace = Workspace(tmp_path, {**terraform_environment, **cloud.environment}, variables)
    workspace.run("init", "-input=false")
    yield workspace
    if json.loads((tmp_path / "terraform.tfstate").read_text())["resources"]:
        workspace.destroy()


def test_all_of_them_are_made_read_changed_and_destroyed(cloud: LocalCloud, sources: Workspace) -> None:
    sources.apply()
    seen = json.loads(sources.run("output", "-json", "seen").text)
    assert seen["statements"] == ["Allow dynamic-group sources to read instances in tenancy"]
    del seen["statements"]
    assert seen == {
        "block": "10.92.0.0/24",
        "label": "sources",
        "subnet": "10.92.0.0/25",
        "in_vcn": True,
        "system": "Oracle Linux",
        "versions": 3,
        "bastion": "ACTIVE",
        "allowed": ["127.0.0.0/8"],
    }
    assert sources.plan().changes == []
    sources.variables |= {"description": "two", "allowed": ["127.0.0.0/8", "203.0.113.0/24"]}
    assert sources.apply().changes == [
        ("oci_bastion_bastion.this", "update"),
        ("oci_identity_dynamic_group.this", "update"),
    ]
    sources.destroy()
    tenancy = {"compartmentId": cloud.credentials.tenancy}
    for collection in (
        "/20160918/appCatalogSubscriptions", "/20160918/dynamicGroups", "/20160918/policies", "/20210331/bastions",
    ):  # fmt: skip
        assert list(cloud.client.items(collection, tenancy)) == [], collection


SHAPE = """
terraform {
  required_providers {
    oci = { source = "oracle/oci" }
  }
}

variable "tenancy" { type = string }
variable "image" { type = string }

resource "oci_core_shape_management" "this" {
  compartment_id = var.tenancy
  image_id       = var.image
  shape_name     = "BM.GPU4.8"
}
"""


def test_a_shape_is_added_to_a_custom_image_and_taken_away(
    cloud: LocalCloud,
    terraform_environment: Mapping[str, str],
    tmp_path: Path,
    custom_image: Callable[[str], str],
) -> None:
    image = custom_image("Oracle-Linux-8.10-2025.08.31-0")
    path = f"/20160918/images/{image}/shapes"

    def fits() -> bool:
        return "BM.GPU4.8" in [entry["shape"] for entry in cloud.client.items(path, {})]

    (tmp_path / "main.tf").write_text(SHAPE)
    variables = {"tenancy": cloud.credentials.tenancy, "image": image}
    workspace = Workspace(tmp_path, {**terraform_environment, **cloud.environment}, variables)
    workspace.run("init", "-input=false")
    assert not fits()
    workspace.apply()
    assert fits()
    cloud.client.call("DELETE", f"{path}/BM.GPU4.8")
    assert workspace.apply().changes == [("oci_core_shape_management.this", "create")]
    assert fits()
    workspace.destroy()
    assert not fits()


@pytest.fixture
def custom_image(cloud: LocalCloud) -> Iterator[Callable[[str], str]]:
    """Makes a custom image of an instance of a platform image; both are gone afterwards."""
    tenancy = cloud.credentials.tenancy
    made: list[str] = []
    vcn = cloud.client.call(
        "POST", "/20160918/vcns", body={"compartmentId": tenancy, "cidrBlocks": ["10.92.1.0/24"]}
    ).body["id"]
    subnet = cloud.client.call(
        "POST", "/20160918/subnets", body={"compartmentId": tenancy, "vcnId": vcn, "cidrBlock": "10.92.1.0/24"}
    ).body["id"]

    def make(name: str) -> str:
        base = next(iter(cloud.client.items("/20160918/images", {"compartmentId": tenancy, "displayName": name})))
        details = {
            "compartmentId": tenancy,
            "availabilityDomain": "local:LOCAL-1-AD-1",
            "shape": "VM.Standard.E5.Flex",
            "shapeConfig": {"ocpus": 1},
            "subnetId": subnet,
            "sourceDetails": {"sourceType": "image", "imageId": base["id"]},
        }
        instance = cloud.client.call("POST", "/20160918/instances", body=details).body["id"]
        cloud.wait("/20160918/instances", instance, "RUNNING")
        request = {"compartmentId": tenancy, "instanceId": instance}
        made.append(cloud.client.call("POST", "/20160918/images", body=request).body["id"])
        cloud.wait("/20160918/images", made[-1], "AVAILABLE")
        cloud.client.call("DELETE", f"/20160918/instances/{instance}")
        cloud.wait("/20160918/instances", instance, "TERMINATED")
        return made[-1]

    yield make
    for image in made:
        cloud.client.call("DELETE", f"/20160918/images/{image}")
    cloud.client.call("DELETE", f"/20160918/subnets/{subnet}")
    cloud.client.call("DELETE", f"/20160918/vcns/{vcn}")
