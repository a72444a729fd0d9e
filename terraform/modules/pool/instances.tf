module "instance" {
  source   = "../instance"
  for_each = toset(local.instance_names)

  agent_plugins           = local.agent_plugins
  availability_domain     = var.availability_domain
  boot_volume_gb          = var.pool.boot_volume_gb
  boot_volume_vpus_per_gb = var.pool.boot_volume_vpus_per_gb
  capacity_reservation_id = var.pool.capacity_reservation_id
  compartment_id          = local.node_compartment_id
  compute_cluster_id      = local.compute_cluster_id
  defined_tags            = var.defined_tags
  freeform_tags           = var.freeform_tags
  hostname                = var.hostname_prefix == null ? null : "${var.hostname_prefix}${each.key}"
  image_id                = lookup(var.pool.node_images, each.key, var.image_id)
  memory_gb               = var.pool.memory_gb
  name                    = each.key
  ocpus                   = var.pool.ocpus
  platform                = local.platform
  shape                   = var.pool.shape
  ssh_authorized_keys     = var.ssh_authorized_keys
  subnet_id               = var.subnet_id
  user_data               = var.pool.user_data
}
