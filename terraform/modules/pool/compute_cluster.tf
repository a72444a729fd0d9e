# The RDMA network that nodes can join and leave one by one.
resource "oci_core_compute_cluster" "this" {
  count = local.has_compute_cluster ? 1 : 0

  availability_domain = var.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = var.defined_tags
  display_name        = local.display_name
  freeform_tags       = var.freeform_tags

  # It can't be deleted while a host of it still shuts down, and bare metal takes its time.
  timeouts {
    delete = "60m"
  }
}
