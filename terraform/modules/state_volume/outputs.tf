output "volume_id" {
  description = "OCID of the volume."
  value       = oci_core_volume.this.id
}
