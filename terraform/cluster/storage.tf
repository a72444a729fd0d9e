module "home" {
  source = "../modules/file_storage"
  count  = var.home.enabled && var.home.server == null ? 1 : 0

  allowed_cidr        = var.network.vcn_cidr
  availability_domain = local.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = local.defined_tags
  export_path         = var.home.export_path
  file_system_id      = var.home.file_system_id
  freeform_tags       = merge(var.freeform_tags, local.origin_tags, { role = "storage" })
  name                = "${var.cluster_name}-home"
  subnet_id           = local.private_subnet.id
  throughput_gbps     = var.home.throughput_gbps
}

module "share" {
  source   = "../modules/share"
  for_each = { for name, share in var.shares : name => share if share.server == null }

  allowed_cidr        = var.network.vcn_cidr
  availability_domain = local.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = local.defined_tags
  export_path         = each.value.export_path
  export_set_id       = one(module.home[*].export_set_id)
  file_system_id      = each.value.file_system_id
  freeform_tags       = merge(var.freeform_tags, local.origin_tags, { role = "storage" })
  mount_target_ip     = one(module.home[*].mount_target_ip)
  name                = "${var.cluster_name}-${each.key}"
  own_mount_target    = each.value.mount_target == "own"
  read_only           = each.value.read_only
  subnet_id           = local.private_subnet.id
  throughput_gbps     = each.value.throughput_gbps
}
