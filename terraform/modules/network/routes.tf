resource "oci_core_route_table" "public" {
  count = local.creates && local.has_public ? 1 : 0

  compartment_id = var.compartment_id
  vcn_id         = local.vcn_id
  defined_tags   = var.defined_tags
  display_name   = "${var.name}-public"
  freeform_tags  = var.freeform_tags

  route_rules {
    description       = "Internet"
    destination       = "0.0.0.0/0"
    destination_type  = "CIDR_BLOCK"
    network_entity_id = oci_core_internet_gateway.this[0].id
  }
}

resource "oci_core_route_table" "private" {
  count = local.creates ? 1 : 0

  compartment_id = var.compartment_id
  vcn_id         = local.vcn_id
  defined_tags   = var.defined_tags
  display_name   = "${var.name}-private"
  freeform_tags  = var.freeform_tags

  route_rules {
    description       = "Internet, outgoing only"
    destination       = "0.0.0.0/0"
    destination_type  = "CIDR_BLOCK"
    network_entity_id = oci_core_nat_gateway.this[0].id
  }

  route_rules {
    description       = "Oracle services, without the internet"
    destination       = data.oci_core_services.all[0].services[0].cidr_block
    destination_type  = "SERVICE_CIDR_BLOCK"
    network_entity_id = oci_core_service_gateway.this[0].id
  }
}
