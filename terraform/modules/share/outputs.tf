output "file_system_id" {
  description = "OCID of the file system."
  value       = local.file_system_id
}

output "mount_target_ip" {
  description = "Address to mount from, after the export is created."
  value       = var.own_mount_target ? one(oci_file_storage_mount_target.this[*].ip_address) : var.mount_target_ip
  depends_on  = [oci_file_storage_export.this]
}
