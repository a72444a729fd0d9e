# Permanent RDMA nodes. Members are named by OCI, "inst-<random>-<name of the pool>":
# neither the API nor the provider accepts a pattern for their names when a cluster network is created.
resource "oci_core_cluster_network" "this" {
  count = local.has_cluster_network ? 1 : 0

  compartment_id = var.compartment_id
  defined_tags   = var.defined_tags
  display_name   = local.display_name
  freeform_tags  = var.freeform_tags

  instance_pools {
    defined_tags              = var.defined_tags
    display_name              = var.name
    freeform_tags             = var.freeform_tags
    instance_configuration_id = one(oci_core_instance_configuration.this[*].id)
    size                      = var.pool.count
  }

  placement_configuration {
    availability_domain = var.availability_domain
    primary_subnet_id   = var.subnet_id
  }

  # Bare metal GPU hosts of a large pool need far longer than the provider's default of 20 minutes.
  timeouts {
    create = "90m"
    update = "90m"
    delete = "90m"
  }
}
