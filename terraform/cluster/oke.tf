locals {
  # Pools whose nodes Kubernetes Engine makes. Those of var.pools are made here, and join by themselves.
  node_pools = var.oke == null ? {} : var.oke.node_pools
}

module "oke" {
  source = "../modules/oke"
  count  = var.oke == null ? 0 : 1

  compartment_id      = var.compartment_id
  defined_tags        = local.defined_tags
  freeform_tags       = merge(var.freeform_tags, { role = "control-plane" })
  name                = var.cluster_name
  node_subnet_id      = module.network.private_subnet_id
  oke                 = var.oke
  ssh_authorized_keys = var.ssh_authorized_keys
  subnet_id           = var.oke.endpoint == "public" ? module.network.public_subnet_id : module.network.private_subnet_id
  vcn_id              = module.network.vcn_id

  node_pools = {
    for name, pool in local.node_pools : name => merge(pool, {
      availability_domain = coalesce(pool.availability_domain, local.availability_domain)
      image_id            = local.pool_image_ids[name]
    })
  }
}
