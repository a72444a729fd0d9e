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
}
