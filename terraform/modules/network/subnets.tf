resource "oci_core_subnet" "public" {
  count = local.creates && local.has_public ? 1 : 0

  compartment_id             = var.compartment_id
  vcn_id                     = local.vcn_id
  cidr_block                 = var.network.public_subnet_cidr
  defined_tags               = var.defined_tags
  display_name               = "${var.name}-public"
  dns_label                  = "public"
  freeform_tags              = var.freeform_tags
  prohibit_public_ip_on_vnic = false
  route_table_id             = oci_core_route_table.public[0].id
  security_list_ids          = [oci_core_security_list.public[0].id]
}

resource "oci_core_subnet" "private" {
  count = local.creates ? 1 : 0

  compartment_id             = var.compartment_id
  vcn_id                     = local.vcn_id
  cidr_block                 = var.network.private_subnet_cidr
  defined_tags               = length(var.elastic_tags) == 0 ? var.defined_tags : merge(var.defined_tags, var.elastic_tags)
  display_name               = "${var.name}-private"
  dns_label                  = "private"
  freeform_tags              = var.freeform_tags
  prohibit_public_ip_on_vnic = true
  route_table_id             = oci_core_route_table.private[0].id
  security_list_ids          = [oci_core_security_list.private[0].id]
}
