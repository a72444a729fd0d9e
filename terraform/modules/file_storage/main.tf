locals {
  file_system_id = var.file_system_id != null ? var.file_system_id : one(oci_file_storage_file_system.this[*].id)
}

resource "oci_file_storage_file_system" "this" {
  count = var.file_system_id == null ? 1 : 0

  availability_domain = var.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = var.defined_tags
  display_name        = var.name
  freeform_tags       = merge(var.freeform_tags, { gpucluster-files = "unused" })

  lifecycle {
    # gpucluster notes here what it knows of users' files, and reads it before it deletes the file system.
    ignore_changes = [freeform_tags["gpucluster-files"]]
  }
}

resource "oci_file_storage_mount_target" "this" {
  availability_domain = var.availability_domain
  compartment_id      = var.compartment_id
  defined_tags        = var.defined_tags
  display_name        = var.name
  freeform_tags       = var.freeform_tags
  # Null when it is made: OCI makes it with 1 Gbps. Later another value raises it at once, or lowers it at the end of its billing cycle.
  requested_throughput = var.throughput_gbps
  subnet_id            = var.subnet_id
}

resource "oci_file_storage_export" "this" {
  export_set_id  = oci_file_storage_mount_target.this.export_set_id
  file_system_id = local.file_system_id
  path           = var.export_path

  # No squash: root of the controller creates the home directories. The privileged port prevents other users from using NFS as root.
  export_options {
    source                         = var.allowed_cidr
    access                         = "READ_WRITE"
    identity_squash                = "NONE"
    require_privileged_source_port = true
  }
}
