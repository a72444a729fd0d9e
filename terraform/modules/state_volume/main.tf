resource "oci_core_volume" "this" {
  availability_domain = var.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = var.defined_tags
  display_name        = var.name
  freeform_tags       = var.freeform_tags
  size_in_gbs         = var.size_gb
}

# It follows the instance. A volume is on one instance at a time: OCI refuses a second attachment.
resource "oci_core_volume_attachment" "this" {
  attachment_type = "paravirtualized"
  device          = var.device
  display_name    = var.name
  instance_id     = var.instance_id
  volume_id       = oci_core_volume.this.id
}
