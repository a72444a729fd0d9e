module "home" {
  source = "../modules/file_storage"

  allowed_cidr        = var.network.vcn_cidr
  availability_domain = local.availability_domain
  compartment_id      = var.compartment_id
  export_path         = var.home.export_path
  freeform_tags       = var.freeform_tags
  name                = "${var.cluster_name}-home"
  subnet_id           = module.network.private_subnet_id
}
