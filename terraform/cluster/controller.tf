module "controller" {
  source = "../modules/instance"

  assign_public_ip        = local.has_public_access
  availability_domain     = local.availability_domain
  boot_volume_gb          = var.controller.boot_volume_gb
  boot_volume_vpus_per_gb = var.controller.boot_volume_vpus_per_gb
  compartment_id          = var.compartment_id
  defined_tags            = local.defined_tags
  freeform_tags           = merge(var.freeform_tags, local.origin_tags, { role = "controller" })
  hostname                = local.controller_subnet.hostname_prefix == null ? null : "${local.controller_subnet.hostname_prefix}controller"
  image_id                = local.controller_image_id
  memory_gb               = var.controller.memory_gb
  name                    = "${var.cluster_name}-controller"
  ocpus                   = var.controller.ocpus
  private_ip              = var.controller.private_ip
  shape                   = var.controller.shape
  ssh_authorized_keys     = var.ssh_authorized_keys
  subnet_id               = local.controller_subnet.id
  user_data               = var.controller.user_data
}

# The host that goes on with the state when the controller is lost. It is like the controller, and differs from it in what it has: the one in service has the volume.
module "standby" {
  source = "../modules/instance"
  count  = var.controller.standby ? 1 : 0

  assign_public_ip        = local.has_public_access
  availability_domain     = local.availability_domain
  boot_volume_gb          = var.controller.boot_volume_gb
  boot_volume_vpus_per_gb = var.controller.boot_volume_vpus_per_gb
  compartment_id          = var.compartment_id
  defined_tags            = local.defined_tags
  freeform_tags           = merge(var.freeform_tags, { role = "standby" })
  hostname                = local.controller_subnet.hostname_prefix == null ? null : "${local.controller_subnet.hostname_prefix}standby"
  image_id                = local.controller_image_id
  memory_gb               = var.controller.memory_gb
  name                    = "${var.cluster_name}-standby"
  ocpus                   = var.controller.ocpus
  shape                   = var.controller.shape
  ssh_authorized_keys     = var.ssh_authorized_keys
  subnet_id               = local.controller_subnet.id
  user_data               = var.controller.user_data
}

locals {
  # The hosts that can be the controller, by the names that failovers use.
  controllers = merge(
    { controller = module.controller.instance },
    { for instance in module.standby[*].instance : "standby" => instance },
  )
  in_service = try(local.controllers[var.service.host], local.controllers.controller)
}

module "state_volume" {
  source = "../modules/state_volume"
  count  = var.controller.state_volume == null ? 0 : 1

  availability_domain = local.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = local.defined_tags
  device              = var.controller.state_volume.device
  freeform_tags       = merge(var.freeform_tags, local.origin_tags, { role = "storage" })
  instance_id         = local.in_service.id
  name                = "${var.cluster_name}-state"
  size_gb             = var.controller.state_volume.size_gb
}
