locals {
  agent_plugins      = var.pool.rdma ? var.pool.rdma_plugins : []
  compute_cluster_id = one(oci_core_compute_cluster.this[*].id)
  display_name       = "${var.cluster_name}-${var.name}"

  has_cluster_network        = var.pool.kind == "cluster_network"
  has_compute_cluster        = var.pool.kind == "compute_cluster"
  has_instance_configuration = local.has_cluster_network || var.pool.max_count > var.pool.count

  # Permanent nodes that Terraform makes one by one. A cluster network makes its own.
  instance_names = toset(local.has_cluster_network ? [] : [for n in range(1, var.pool.count + 1) : "${var.name}-${n}"])
}
