# The RDMA network that nodes can join and leave individually.
resource "oci_core_compute_cluster" "this" {
  count = local.has_compute_cluster ? 1 : 0

  availability_domain = var.availability_domain
  compartment_id      = local.has_memory_cluster ? var.compartment_id : local.elastic_compartment_id
  defined_tags        = var.defined_tags
  display_name        = local.display_name
  freeform_tags       = var.freeform_tags

  # It can't be deleted while one of its hosts shuts down, and bare metal shuts down slowly.
  timeouts {
    delete = "60m"
  }
}
