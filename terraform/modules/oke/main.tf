# The control plane of Oracle Kubernetes Engine. Node pools are in node_pools.tf; nodes of other pools are instances that
# join by themselves, made by the module pool.
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
    is_public_ip_enabled = local.has_public_endpoint
    subnet_id            = var.subnet_id
  }

  options {
    kubernetes_network_config {
      pods_cidr     = var.oke.pod_cidr
      services_cidr = var.oke.service_cidr
    }
  }
}

locals {
  has_public_endpoint = var.oke.endpoint == "public"
}

# The certificate of the cluster's CA is in its kubeconfig only. There is no secret in it: kubectl asks oci-cli.
data "oci_containerengine_cluster_kube_config" "this" {
  cluster_id    = oci_containerengine_cluster.this.id
  endpoint      = local.has_public_endpoint ? "PUBLIC_ENDPOINT" : "PRIVATE_ENDPOINT"
  token_version = "2.0.0"
}
