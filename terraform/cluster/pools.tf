module "pool" {
  source   = "../modules/pool"
  for_each = var.pools

  availability_domain    = local.pool_domains[each.key]
  baked_image_id         = each.value.baked_image_id
  cluster_name           = var.cluster_name
  compartment_id         = var.compartment_id
  defined_tags           = local.pool_tags
  elastic_compartment_id = local.elastic_compartment_id
  elastic_tags           = var.elastic_tags
  freeform_tags          = merge(var.freeform_tags, { role = "compute", pool = each.key })
  hostname_prefix        = local.private_subnet.hostname_prefix
  image_id               = local.pool_image_ids[each.key]
  name                   = each.key
  pool                   = each.value
  ssh_authorized_keys    = var.ssh_authorized_keys
  subnet_id              = local.private_subnet.id
}
