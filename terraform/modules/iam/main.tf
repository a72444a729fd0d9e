resource "oci_identity_dynamic_group" "this" {
  provider = oci.home

  compartment_id = var.tenancy_id
  defined_tags   = var.defined_tags
  description    = var.description
  freeform_tags  = var.freeform_tags
  matching_rule  = var.matching_rule
  name           = var.dynamic_group
}

resource "oci_identity_policy" "compartment" {
  provider = oci.home

  compartment_id = var.compartment_id
  defined_tags   = var.defined_tags
  description    = var.description
  freeform_tags  = var.freeform_tags
  name           = var.dynamic_group
  statements     = var.compartment_statements

  # Statements name the group, which must exist first.
  depends_on = [oci_identity_dynamic_group.this]
}

resource "oci_identity_policy" "tenancy" {
  count    = length(var.tenancy_statements) > 0 ? 1 : 0
  provider = oci.home

  compartment_id = var.tenancy_id
  defined_tags   = var.defined_tags
  description    = var.description
  freeform_tags  = var.freeform_tags
  name           = "${var.dynamic_group}-tenancy"
  statements     = var.tenancy_statements

  depends_on = [oci_identity_dynamic_group.this]
}
