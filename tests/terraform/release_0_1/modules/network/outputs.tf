output "private_subnet_id" {
  description = "OCID of the private subnet, once its routes to the NAT and service gateways stand."
  value       = oci_core_subnet.private.id
}

output "public_subnet_id" {
  description = "OCID of the public subnet, once its route to the internet gateway stands."
  value       = oci_core_subnet.public.id
}

output "vcn_id" {
  description = "OCID of the VCN."
  value       = oci_core_vcn.this.id
}
