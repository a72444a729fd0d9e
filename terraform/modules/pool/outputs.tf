output "cluster_network_id" {
  description = "OCID of the cluster network; null for the other kinds."
  value       = one(oci_core_cluster_network.this[*].id)
}

output "compute_cluster_id" {
  description = "OCID of the compute cluster; null for the other kinds."
  value       = local.compute_cluster_id
}

output "gpu_memory_cluster_id" {
  description = "OCID of the GPU memory cluster; null for the other kinds."
  value       = one(oci_core_compute_gpu_memory_cluster.this[*].id)
}

output "instance_configuration_id" {
  description = "OCID of the instance configuration; null for a pool that cannot grow and has neither a cluster network nor a GPU memory cluster."
  value       = one(oci_core_instance_configuration.this[*].id)
}

output "instances" {
  description = "The nodes that Terraform created, in the order of their names in the pool: id, name, private_ip. Empty for a cluster network and a GPU memory cluster."
  value = [
    for name in local.instance_names : {
      id         = module.instance[name].instance.id
      name       = module.instance[name].instance.name
      private_ip = module.instance[name].instance.private_ip
    }
  ]
}
