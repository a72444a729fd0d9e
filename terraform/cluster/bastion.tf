# Access to a cluster without public addresses: sessions of the OCI Bastion service to the private subnet.
resource "oci_bastion_bastion" "this" {
  count = local.has_public_access ? 0 : 1

  bastion_type                 = "STANDARD"
  client_cidr_block_allow_list = var.network.ssh_allowed_cidrs
  compartment_id               = var.compartment_id
  defined_tags                 = local.defined_tags
  freeform_tags                = merge(var.freeform_tags, { role = "bastion" })
  max_session_ttl_in_seconds   = 10800                              # the maximum of the service
  name                         = replace(var.cluster_name, "-", "") # the service accepts letters and digits only
  target_subnet_id             = local.private_subnet.id
}
