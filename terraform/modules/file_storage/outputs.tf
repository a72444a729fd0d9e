output "export_set_id" {
  description = "OCID of the export set of the mount target, for further exports."
  value       = oci_file_storage_mount_target.this.export_set_id
}

output "file_system_id" {
  description = "OCID of the file system."
  value       = local.file_system_id
}

output "mount_target_ip" {
  description = "Address to mount from, after the export is created."
  value       = oci_file_storage_mount_target.this.ip_address
  depends_on  = [oci_file_storage_export.this]
}
