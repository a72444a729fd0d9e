# Pools whose nodes OKE makes, joins and replaces. None of them is in an RDMA network.
resource "oci_containerengine_node_pool" "this" {
  for_each = var.node_pools

  cluster_id     = oci_containerengine_cluster.this.id
  compartment_id = var.compartment_id
  defined_tags   = var.defined_tags
  freeform_tags  = merge(var.freeform_tags, { role = "node-pool", pool = each.key })
  # The control plane goes first: no node may be newer.
  kubernetes_version = oci_containerengine_cluster.this.kubernetes_version
  name               = "${var.name}-${each.key}"
  node_metadata      = each.value.user_data == null ? null : { user_data = base64encode(each.value.user_data) }
  node_shape         = each.value.shape
  ssh_public_key     = join("\n", var.ssh_authorized_keys)

  dynamic "initial_node_labels" {
    for_each = each.value.labels

    content {
      key   = initial_node_labels.key
      value = initial_node_labels.value
    }
  }

  node_config_details {
    # Bare metal hosts have no paravirtualized attachment to encrypt.
    is_pv_encryption_in_transit_enabled = startswith(each.value.shape, "VM.")

    defined_tags  = var.defined_tags
    freeform_tags = merge(var.freeform_tags, { role = "node-pool", pool = each.key })
    size          = each.value.count

    node_pool_pod_network_option_details {
      cni_type = "FLANNEL_OVERLAY"
    }

    placement_configs {
      availability_domain     = each.value.availability_domain
      capacity_reservation_id = each.value.capacity_reservation_id
      subnet_id               = var.node_subnet_id
    }
  }

  # Pods have half an hour to end. A disruption budget that does not let them go stops the change, and not the pods.
  node_eviction_node_pool_settings {
    eviction_grace_duration              = "PT30M"
    is_force_action_after_grace_duration = false
    is_force_delete_after_grace_duration = false
  }

  # Another version, image or shape replaces the nodes one by one. None is added before: a limit may have no room for it.
  node_pool_cycling_details {
    cycle_modes             = ["INSTANCE_REPLACE"]
    is_node_cycling_enabled = true
    maximum_surge           = "0"
    maximum_unavailable     = "1"
  }

  dynamic "node_shape_config" {
    for_each = each.value.ocpus == null ? [] : [each.value.ocpus]

    content {
      ocpus         = node_shape_config.value
      memory_in_gbs = each.value.memory_gb
    }
  }

  node_source_details {
    source_type             = "IMAGE"
    image_id                = each.value.image_id
    boot_volume_size_in_gbs = each.value.boot_volume_gb
  }

  # Nodes are replaced one by one, each after its pods have ended.
  timeouts {
    create = "60m"
    update = "12h"
    delete = "4h"
  }
}
