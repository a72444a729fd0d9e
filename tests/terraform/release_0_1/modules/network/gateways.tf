data "oci_core_services" "all" {
  filter {
    name   = "cidr_block"
    values = ["^all-"]
    regex  = true
  }

  lifecycle {
    postcondition {
      condition     = length(self.services) == 1
      error_message = "The region must offer one service whose CIDR label begins with \"all-\" (all Oracle services); it offers ${length(self.services)}."
    }
  }
}

resource "oci_core_internet_gateway" "this" {
  compartment_id = var.compartment_id
  vcn_id         = oci_core_vcn.this.id
  display_name   = "${var.name}-internet"
  enabled        = true
  freeform_tags  = var.freeform_tags
}

resource "oci_core_nat_gateway" "this" {
  compartment_id = var.compartment_id
  vcn_id         = oci_core_vcn.this.id
  display_name   = "${var.name}-nat"
  freeform_tags  = var.freeform_tags
}

resource "oci_core_service_gateway" "this" {
  compartment_id = var.compartment_id
  vcn_id         = oci_core_vcn.this.id
  display_name   = "${var.name}-service"
  freeform_tags  = var.freeform_tags

  services {
    service_id = data.oci_core_services.all.services[0].id
  }
}
