locals {
  agent_plugins = concat(
    [for name in var.pool.rdma ? var.pool.rdma_plugins : [] : { name = name, state = "ENABLED" }],
    [for name in var.pool.disabled_plugins : { name = name, state = "DISABLED" }],
  )
  compute_cluster_id = one(oci_core_compute_cluster.this[*].id)
  display_name       = "${var.cluster_name}-${var.name}"

  # The instances of a compute cluster must be in its compartment, so its permanent nodes are there, too.
  elastic_compartment_id = coalesce(var.elastic_compartment_id, var.compartment_id)
  launch_compartment_id  = local.launched_together ? var.compartment_id : local.elastic_compartment_id
  node_compartment_id    = local.has_compute_cluster ? local.elastic_compartment_id : var.compartment_id

  has_cluster_network        = var.pool.kind == "cluster_network"
  has_compute_cluster        = var.pool.kind == "compute_cluster" || local.has_memory_cluster
  has_instance_configuration = local.launched_together || var.pool.max_count > var.pool.count
  has_memory_cluster         = var.pool.kind == "gpu_memory_cluster"
  launched_together          = local.has_cluster_network || local.has_memory_cluster

  # Null stays null: an empty map would remove the tags of the tenancy's tag defaults.
  launch_tags = length(var.elastic_tags) == 0 || var.pool.max_count <= var.pool.count ? var.defined_tags : merge(var.defined_tags, var.elastic_tags)

  # Permanent nodes that Terraform creates individually, so that each can be removed alone. A cluster network and a GPU
  # memory cluster create their own.
  instance_names = local.launched_together ? [] : var.pool.node_names

  # Without settings the platform is not sent, and the host keeps its firmware settings.
  platform = try(coalesce(var.pool.platform.numa_nodes_per_socket, var.pool.platform.smt), null) == null ? null : var.pool.platform
}
