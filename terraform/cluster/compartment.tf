# The compartment of elastic nodes: the controller may launch and terminate instances there, and nowhere else.
resource "oci_identity_compartment" "elastic" {
  count    = try(var.elastic_compartment.name, null) == null ? 0 : 1
  provider = oci.home

  compartment_id = var.compartment_id
  defined_tags   = local.defined_tags
  description    = "Elastic nodes of the cluster ${var.cluster_name}"
  # OCI needs up to hours to delete one. Instead it stays, empty, and the next apply uses it again.
  enable_delete = false
  freeform_tags = merge(var.freeform_tags, { role = "compartment" })
  name          = var.elastic_compartment.name
}

locals {
  elastic_compartment_id = (
    var.elastic_compartment == null ? var.compartment_id
    : coalesce(var.elastic_compartment.ocid, one(oci_identity_compartment.elastic[*].id))
  )
}
