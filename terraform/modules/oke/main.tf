# The control plane of Oracle Kubernetes Engine. Its nodes are not made here.
# Flannel: pods have addresses of their own range. With VCN-native pods each needs one of a subnet, and the cluster's
# private subnet has addresses for nodes. RDMA and NFS traffic of pods uses neither.

resource "oci_containerengine_cluster" "this" {
  compartment_id     = var.compartment_id
  vcn_id             = var.vcn_id
  defined_tags       = var.defined_tags
  freeform_tags      = var.freeform_tags
  kubernetes_version = var.oke.kubernetes_version
  name               = var.name
  # Add-ons of a chosen version and self-managed nodes need an enhanced cluster.
  type = "ENHANCED_CLUSTER"

  cluster_pod_network_options {
    cni_type = "FLANNEL_OVERLAY"
  }

  endpoint_config {
    is_public_ip_enabled = var.oke.endpoint == "public"
    subnet_id            = var.subnet_id
  }

  options {
    kubernetes_network_config {
      pods_cidr     = var.oke.pod_cidr
      services_cidr = var.oke.service_cidr
    }
  }
}
