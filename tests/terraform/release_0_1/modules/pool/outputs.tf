output "cluster_network_id" {
  description = "OCID of the cluster network; null for the other kinds."
  value       = one(oci_core_cluster_network.this[*].id)
}

output "compute_cluster_id" {
  description = "OCID of the compute cluster; null for the other kinds."
  value       = local.compute_cluster_id
}

output "instance_configuration_id" {
  description = "OCID of the instance configuration; null for a pool that cannot grow and has no cluster network."
  value       = one(oci_core_instance_configuration.this[*].id)
}

output "instances" {
  description = "The nodes that Terraform made, by number: id, name, private_ip. Empty for a cluster network."
  value = [
    for n in range(1, length(module.instance) + 1) : {
      id         = module.instance["${var.name}-${n}"].instance.id
      name       = module.instance["${var.name}-${n}"].instance.name
      private_ip = module.instance["${var.name}-${n}"].instance.private_ip
    }
  ]
}
