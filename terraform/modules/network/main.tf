# An existing VCN keeps its subnets, gateways, routes and security lists: they belong to their owner, and are only read.

locals {
  creates    = var.network.vcn_id == null
  has_public = var.network.access == "public"

  vcn_id            = local.creates ? one(oci_core_vcn.this[*].id) : var.network.vcn_id
  public_subnet_id  = local.creates ? one(oci_core_subnet.public[*].id) : var.network.public_subnet_id
  private_subnet_id = local.creates ? one(oci_core_subnet.private[*].id) : var.network.private_subnet_id
}

resource "oci_core_vcn" "this" {
  count = local.creates ? 1 : 0

  compartment_id = var.compartment_id
  cidr_blocks    = [var.network.vcn_cidr]
  defined_tags   = var.defined_tags
  display_name   = var.name
  dns_label      = var.network.dns_label
  freeform_tags  = var.freeform_tags

  lifecycle {
    # Which run of gpucluster holds the cluster.
    ignore_changes = [freeform_tags["gpucluster-lock"]]
  }
}
