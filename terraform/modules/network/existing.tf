data "oci_core_vcn" "existing" {
  count = local.creates ? 0 : 1

  vcn_id = var.network.vcn_id

  lifecycle {
    postcondition {
      condition     = contains(coalesce(self.cidr_blocks, []), var.network.vcn_cidr)
      error_message = "The VCN ${self.display_name} (${self.vcn_id}) has the CIDR blocks ${join(", ", coalesce(self.cidr_blocks, []))}, not ${var.network.vcn_cidr}. Set network.vcn_cidr to one of its blocks."
    }
  }
}

data "oci_core_subnet" "existing" {
  for_each = local.creates ? {} : merge(
    { private = { id = var.network.private_subnet_id, cidr = var.network.private_subnet_cidr } },
    local.has_public ? { public = { id = var.network.public_subnet_id, cidr = var.network.public_subnet_cidr } } : {},
  )

  subnet_id = each.value.id

  lifecycle {
    postcondition {
      condition     = self.vcn_id == var.network.vcn_id
      error_message = "The subnet ${self.display_name} (${self.subnet_id}) is in the VCN ${self.vcn_id}, not in ${var.network.vcn_id}. Set network.${each.key}_subnet_id to a subnet of that VCN."
    }

    postcondition {
      condition     = self.cidr_block == each.value.cidr
      error_message = "The subnet ${self.display_name} (${self.subnet_id}) has the CIDR block ${self.cidr_block}, not ${each.value.cidr}. Set network.${each.key}_subnet_cidr to its block."
    }

    postcondition {
      # Nodes must not be reachable from the internet, and the controller must.
      condition     = self.prohibit_public_ip_on_vnic == (each.key == "private")
      error_message = "The subnet ${self.display_name} (${self.subnet_id}) ${self.prohibit_public_ip_on_vnic ? "prohibits" : "allows"} public addresses: it can't be the ${each.key} one. Set network.${each.key}_subnet_id to another subnet${each.key == "public" ? ", or reach the cluster through a bastion (network.access)" : ""}."
    }
  }
}
