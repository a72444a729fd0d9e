output "has_dns" {
  description = "Whether hosts can have a name in the VCN's DNS, by subnet: private and public."
  value = {
    private = local.creates || can(coalesce(data.oci_core_subnet.existing["private"].dns_label))
    public  = local.creates || can(coalesce(data.oci_core_subnet.existing["public"].dns_label))
  }
}

output "private_subnet_domain_name" {
  description = "DNS domain of the hosts in the private subnet; null or empty without one."
  value       = local.creates ? one(oci_core_subnet.private[*].subnet_domain_name) : data.oci_core_subnet.existing["private"].subnet_domain_name
}

output "private_subnet_id" {
  description = "OCID of the private subnet, after its routes to the NAT and service gateways are created."
  value       = local.private_subnet_id
}

output "public_subnet_id" {
  description = "OCID of the public subnet, after its route to the internet gateway is created; null without one."
  value       = local.has_public ? local.public_subnet_id : null
}

output "vcn_id" {
  description = "OCID of the VCN."
  value       = local.vcn_id
}
