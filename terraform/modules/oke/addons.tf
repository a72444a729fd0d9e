resource "oci_containerengine_addon" "this" {
  for_each = var.oke.addons

  addon_name = each.key
  cluster_id = oci_containerengine_cluster.this.id
  # OKE installs essential ones with the cluster; here they only get their version.
  override_existing = true
  # Without what an essential one has installed no pod of the cluster works: it stays when it is not listed any more.
  remove_addon_resources_on_delete = !contains(["CoreDNS", "Flannel", "KubeProxy", "OciVcnIpNative"], each.key)
  # Null: OKE updates it.
  version = each.value

  dynamic "configurations" {
    for_each = { for name, value in var.oke.addon_affinity : "affinity" => value if name == each.key }

    content {
      key   = configurations.key
      value = configurations.value
    }
  }

  # The pods of an add-on need a node.
  depends_on = [oci_containerengine_node_pool.this]
}
