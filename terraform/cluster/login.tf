# The hosts on which users log in, reached as the controller is.
module "login" {
  source   = "../modules/instance"
  for_each = toset(var.login == null ? [] : var.login.names)

  assign_public_ip        = local.has_public_access
  availability_domain     = local.availability_domain
  boot_volume_gb          = var.login.boot_volume_gb
  boot_volume_vpus_per_gb = var.login.boot_volume_vpus_per_gb
  compartment_id          = var.compartment_id
  defined_tags            = local.defined_tags
  freeform_tags           = merge(var.freeform_tags, { role = "login" })
  hostname                = local.controller_subnet.hostname_prefix == null ? null : "${local.controller_subnet.hostname_prefix}${trimprefix(each.key, "${var.cluster_name}-")}"
  image_id                = local.login_image_id
  memory_gb               = var.login.memory_gb
  name                    = each.key
  ocpus                   = var.login.ocpus
  shape                   = var.login.shape
  ssh_authorized_keys     = var.ssh_authorized_keys
  subnet_id               = local.controller_subnet.id
  user_data               = var.login.user_data
}
