output "cluster" {
  description = "OCID and Kubernetes version of the cluster, address and port of its API (private_endpoint, and public_endpoint or null), and ca, the certificate of its CA: PEM in base64."
  value = {
    id                 = oci_containerengine_cluster.this.id
    kubernetes_version = oci_containerengine_cluster.this.kubernetes_version
    private_endpoint   = oci_containerengine_cluster.this.endpoints[0].private_endpoint
    public_endpoint    = local.has_public_endpoint ? oci_containerengine_cluster.this.endpoints[0].public_endpoint : null
    ca                 = yamldecode(data.oci_containerengine_cluster_kube_config.this.content).clusters[0].cluster["certificate-authority-data"]
  }
}

output "node_pool_ids" {
  description = "OCIDs of the node pools, by the names of the pools."
  value       = { for name, pool in oci_containerengine_node_pool.this : name => pool.id }
}
