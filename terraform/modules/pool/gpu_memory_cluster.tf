# A rack: its hosts share an NVLink fabric. OCI launches its instances together and names them, as those of a cluster network.
resource "oci_core_compute_gpu_memory_cluster" "this" {
  count = local.has_memory_cluster ? 1 : 0

  availability_domain       = var.availability_domain
  compartment_id            = var.compartment_id
  compute_cluster_id        = local.compute_cluster_id
  defined_tags              = var.defined_tags
  display_name              = local.display_name
  freeform_tags             = var.freeform_tags
  gpu_memory_fabric_id      = var.pool.memory_fabric_id
  instance_configuration_id = one(oci_core_instance_configuration.this[*].id)
  size                      = var.pool.count

  # As for a cluster network: bare metal boots slowly, and is wiped when it ends.
  timeouts {
    create = "90m"
    update = "90m"
    delete = "90m"
  }
}
