module "oke" {
  source = "../modules/oke"
  count  = var.oke == null ? 0 : 1

  compartment_id = var.compartment_id
  defined_tags   = local.defined_tags
  freeform_tags  = merge(var.freeform_tags, { role = "control-plane" })
  name           = var.cluster_name
  oke            = var.oke
  subnet_id      = var.oke.endpoint == "public" ? module.network.public_subnet_id : module.network.private_subnet_id
  vcn_id         = module.network.vcn_id
}
