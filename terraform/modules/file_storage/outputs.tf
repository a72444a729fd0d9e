output "file_system_id" {
  description = "OCID of the file system."
  value       = local.file_system_id
}

output "mount_target_ip" {
  description = "Address to mount from, after the export is created."
  value       = oci_file_storage_mount_target.this.ip_address
  depends_on  = [oci_file_storage_export.this]
}
