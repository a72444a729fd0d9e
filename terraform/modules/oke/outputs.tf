output "cluster" {
  description = "OCID and Kubernetes version of the cluster, and address and port of its API: private_endpoint, and public_endpoint or null."
  value = {
    id                 = oci_containerengine_cluster.this.id
    kubernetes_version = oci_containerengine_cluster.this.kubernetes_version
    private_endpoint   = oci_containerengine_cluster.this.endpoints[0].private_endpoint
    public_endpoint    = oci_containerengine_cluster.this.endpoints[0].public_endpoint
  }
}
