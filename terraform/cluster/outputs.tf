output "cluster" {
  description = "The created resources: the contract with the Python side. A change that breaks a reader raises contract_version. The members of a cluster network and of a GPU memory cluster are not listed: their number may differ from Terraform's state, so they are queried when they are needed."
  value = {
    contract_version           = 2
    name                       = var.cluster_name
    region                     = var.region
    compartment_id             = var.compartment_id
    elastic_compartment_id     = local.elastic_compartment_id
    availability_domain        = local.availability_domain
    bastion_id                 = one(oci_bastion_bastion.this[*].id)
    dynamic_group_id           = one(module.iam[*].dynamic_group_id)
    vcn_id                     = module.network.vcn_id
    public_subnet_id           = module.network.public_subnet_id
    private_subnet_id          = module.network.private_subnet_id
    private_subnet_domain_name = module.network.private_subnet_domain_name
    controller                 = module.controller.instance
    standby                    = one(module.standby[*].instance)
    state_volume_id            = one(module.state_volume[*].volume_id)
    login                      = [for name in try(var.login.names, []) : module.login[name].instance]
    # All null without a shared home.
    home = {
      file_system_id  = one(module.home[*].file_system_id)
      mount_target_ip = var.home.enabled && var.home.server != null ? var.home.server : one(module.home[*].mount_target_ip)
      export_path     = var.home.enabled ? var.home.export_path : null
    }
    # By name. A share of an existing server has no file system here.
    shares = {
      for name, share in var.shares : name => {
        file_system_id  = share.server == null ? module.share[name].file_system_id : null
        mount_target_ip = share.server == null ? module.share[name].mount_target_ip : share.server
        export_path     = share.export_path
      }
    }
    pools = {
      for name, pool in module.pool : name => {
        availability_domain       = local.pool_domains[name]
        baked_image_id            = var.pools[name].baked_image_id
        kind                      = var.pools[name].kind
        shape                     = var.pools[name].shape
        image_id                  = local.pool_image_ids[name]
        instance_configuration_id = pool.instance_configuration_id
        compute_cluster_id        = pool.compute_cluster_id
        cluster_network_id        = pool.cluster_network_id
        gpu_memory_cluster_id     = pool.gpu_memory_cluster_id
        instances                 = pool.instances
      }
    }
  }
}

output "identity" {
  description = "What this cluster is, for any machine that reads the state. It depends on no resource, so it is in the state as soon as an apply begins. release is the gpucluster that has applied it. login_keys holds the public halves of generated login keys by user; the private ones stay where they were generated. host_keys, certificates, secrets, physical_hosts and reported_hosts are written into the state when the hosts have reported them, and come back as the variable recorded."
  value = {
    contract_version = 2
    release          = var.release
    name             = var.cluster_name
    id               = var.cluster_id
    origin           = var.origin
    compartment_id   = var.compartment_id
    login_keys       = var.login_keys
    host_keys        = var.recorded.host_keys
    certificates     = var.recorded.certificates
    secrets          = var.recorded.secrets
    physical_hosts   = var.recorded.physical_hosts
    reported_hosts   = var.recorded.reported_hosts
  }
}

output "oke" {
  description = "The control plane of Kubernetes Engine: id, kubernetes_version, private_endpoint and public_endpoint (address and port, or null) and ca, the certificate of its CA (PEM in base64). Null for another control plane."
  value       = one(module.oke[*].cluster)
}

output "rollouts" {
  description = "Images that roll through pools: what gpucluster stores of each between two steps, as JSON by pool. It is written into the state after each step, and comes back as the variable rollouts."
  value       = var.rollouts
}

output "service" {
  description = "Which of the two hosts that can be the controller is in service, and how far a failover is: what gpucluster stores of it. It is written into the state before each failover and after it, and comes back as the variable service."
  value       = var.service
}
