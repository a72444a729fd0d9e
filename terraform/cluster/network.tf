data "oci_identity_availability_domains" "all" {
  compartment_id = var.tenancy_id

  lifecycle {
    postcondition {
      condition     = var.availability_domain == null || contains(self.availability_domains[*].name, coalesce(var.availability_domain, "-"))
      error_message = "availability_domain ${coalesce(var.availability_domain, "-")} is not one of this region: ${join(", ", self.availability_domains[*].name)}."
    }
  }
}

locals {
  availability_domain = coalesce(var.availability_domain, data.oci_identity_availability_domains.all.availability_domains[0].name)
}

module "network" {
  source = "../modules/network"

  compartment_id = var.compartment_id
  freeform_tags  = var.freeform_tags
  name           = var.cluster_name
  network        = var.network
}
