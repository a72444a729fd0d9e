# From outside: SSH (and the API of Kubernetes, if it is public) to the public subnet from the allowed blocks, and the ICMP message that path MTU discovery needs.
# Inside the VCN all traffic is allowed: MPI, NCCL, NFS and Slurm select ports at run time.
# Both subnets have their own list, so that the VCN's default list (which opens SSH to everyone) is attached to nothing.

resource "oci_core_security_list" "public" {
  count = local.creates && local.has_public ? 1 : 0

  compartment_id = var.compartment_id
  vcn_id         = local.vcn_id
  defined_tags   = var.defined_tags
  display_name   = "${var.name}-public"
  freeform_tags  = var.freeform_tags

  dynamic "ingress_security_rules" {
    for_each = toset(var.network.ssh_allowed_cidrs)

    content {
      description = "SSH"
      protocol    = "6" # TCP
      source      = ingress_security_rules.value
      source_type = "CIDR_BLOCK"
      stateless   = false

      tcp_options {
        min = 22
        max = 22
      }
    }
  }

  dynamic "ingress_security_rules" {
    for_each = var.has_public_kubernetes ? toset(var.network.ssh_allowed_cidrs) : toset([])

    content {
      description = "API of Kubernetes"
      protocol    = "6" # TCP
      source      = ingress_security_rules.value
      source_type = "CIDR_BLOCK"
      stateless   = false

      tcp_options {
        min = 6443
        max = 6443
      }
    }
  }

  ingress_security_rules {
    description = "Path MTU discovery"
    protocol    = "1" # ICMP
    source      = "0.0.0.0/0"
    source_type = "CIDR_BLOCK"
    stateless   = false

    icmp_options {
      type = 3
      code = 4
    }
  }

  ingress_security_rules {
    description = "Inside the VCN"
    protocol    = "all"
    source      = var.network.vcn_cidr
    source_type = "CIDR_BLOCK"
    stateless   = false
  }

  egress_security_rules {
    description      = "Everything out"
    protocol         = "all"
    destination      = "0.0.0.0/0"
    destination_type = "CIDR_BLOCK"
    stateless        = false
  }
}

resource "oci_core_security_list" "private" {
  count = local.creates ? 1 : 0

  compartment_id = var.compartment_id
  vcn_id         = local.vcn_id
  defined_tags   = var.defined_tags
  display_name   = "${var.name}-private"
  freeform_tags  = var.freeform_tags

  ingress_security_rules {
    description = "Path MTU discovery"
    protocol    = "1" # ICMP
    source      = "0.0.0.0/0"
    source_type = "CIDR_BLOCK"
    stateless   = false

    icmp_options {
      type = 3
      code = 4
    }
  }

  ingress_security_rules {
    description = "Inside the VCN"
    protocol    = "all"
    source      = var.network.vcn_cidr
    source_type = "CIDR_BLOCK"
    stateless   = false
  }

  egress_security_rules {
    description      = "Everything out"
    protocol         = "all"
    destination      = "0.0.0.0/0"
    destination_type = "CIDR_BLOCK"
    stateless        = false
  }
}
