module "instance" {
  source   = "../instance"
  for_each = local.instance_names

  agent_plugins       = local.agent_plugins
  availability_domain = var.availability_domain
  boot_volume_gb      = var.pool.boot_volume_gb
  compartment_id      = var.compartment_id
  compute_cluster_id  = local.compute_cluster_id
  freeform_tags       = var.freeform_tags
  hostname            = each.key
  image_id            = var.image_id
  memory_gb           = var.pool.memory_gb
  name                = each.key
  ocpus               = var.pool.ocpus
  shape               = var.pool.shape
  ssh_authorized_keys = var.ssh_authorized_keys
  subnet_id           = var.subnet_id
}
