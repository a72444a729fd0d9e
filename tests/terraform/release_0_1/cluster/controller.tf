module "controller" {
  source = "../modules/instance"

  assign_public_ip    = true
  availability_domain = local.availability_domain
  boot_volume_gb      = var.controller.boot_volume_gb
  compartment_id      = var.compartment_id
  freeform_tags       = merge(var.freeform_tags, { role = "controller" })
  hostname            = "controller"
  image_id            = local.controller_image_id
  memory_gb           = var.controller.memory_gb
  name                = "${var.cluster_name}-controller"
  ocpus               = var.controller.ocpus
  shape               = var.controller.shape
  ssh_authorized_keys = var.ssh_authorized_keys
  subnet_id           = module.network.public_subnet_id
}
