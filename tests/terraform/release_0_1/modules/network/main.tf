resource "oci_core_vcn" "this" {
  compartment_id = var.compartment_id
  cidr_blocks    = [var.network.vcn_cidr]
  display_name   = var.name
  dns_label      = var.network.dns_label
  freeform_tags  = var.freeform_tags
}
