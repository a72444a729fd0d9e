data "oci_identity_availability_domains" "all" {
  compartment_id = var.tenancy_id

  lifecycle {
    postcondition {
      condition     = alltrue([for name in local._named_domains : contains(self.availability_domains[*].name, name)])
      error_message = "availability_domain ${join(", ", [for name in local._named_domains : name if !contains(self.availability_domains[*].name, name)])} is not one of this region: ${join(", ", self.availability_domains[*].name)}."
    }
  }
}

locals {
  _named_domains = distinct(compact(concat(
    [var.availability_domain],
    [for pool in var.pools : pool.availability_domain],
    [for pool in local.node_pools : pool.availability_domain],
  )))

  availability_domain = coalesce(var.availability_domain, data.oci_identity_availability_domains.all.availability_domains[0].name)
  pool_domains        = { for name, pool in var.pools : name => coalesce(pool.availability_domain, local.availability_domain) }
}

module "network" {
  source = "../modules/network"

  compartment_id = var.compartment_id
  defined_tags   = local.defined_tags
  elastic_tags   = var.elastic_tags
  freeform_tags  = merge(var.freeform_tags, local.origin_tags, { role = "network" })
  name           = var.cluster_name
  network        = var.network

  has_public_kubernetes = try(var.oke.endpoint == "public", false)
}

locals {
  has_public_access = var.network.access == "public"

  # A subnet of this configuration has no other hosts. In an existing one another cluster may use the same names.
  _hostname_prefix = var.network.vcn_id == null ? "" : "${var.cluster_name}-"

  private_subnet = {
    id              = module.network.private_subnet_id
    hostname_prefix = module.network.has_dns.private ? local._hostname_prefix : null
  }
  public_subnet = {
    id              = module.network.public_subnet_id
    hostname_prefix = module.network.has_dns.public ? local._hostname_prefix : null
  }
  controller_subnet = local.has_public_access ? local.public_subnet : local.private_subnet
}
