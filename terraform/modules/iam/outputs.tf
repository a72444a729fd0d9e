output "dynamic_group_id" {
  description = "OCID of the dynamic group."
  value       = oci_identity_dynamic_group.this.id
}
