# Launch details of nodes that Terraform does not create itself: the cluster network does, or later the autoscaler.
resource "oci_core_instance_configuration" "this" {
  count = local.has_instance_configuration ? 1 : 0

  compartment_id = local.launch_compartment_id
  defined_tags   = local.launch_tags
  display_name   = local.display_name
  freeform_tags  = var.freeform_tags

  instance_details {
    instance_type = "compute"

    launch_details {
      availability_domain     = var.availability_domain
      capacity_reservation_id = var.pool.capacity_reservation_id
      compartment_id          = local.launch_compartment_id
      compute_cluster_id      = local.has_memory_cluster ? null : local.compute_cluster_id # the GPU memory cluster names it
      defined_tags            = local.launch_tags
      freeform_tags           = var.freeform_tags
      shape                   = var.pool.shape

      metadata = merge(
        { ssh_authorized_keys = join("\n", var.ssh_authorized_keys) },
        var.pool.user_data == null ? {} : { user_data = base64encode(var.pool.user_data) },
      )

      create_vnic_details {
        assign_public_ip = false
        subnet_id        = var.subnet_id
      }

      instance_options {
        are_legacy_imds_endpoints_disabled = true
      }

      source_details {
        source_type             = "image"
        image_id                = coalesce(var.baked_image_id, var.pool.launch_image_id, var.image_id)
        boot_volume_size_in_gbs = var.pool.boot_volume_gb
        boot_volume_vpus_per_gb = var.pool.boot_volume_vpus_per_gb
      }

      dynamic "agent_config" {
        for_each = length(local.agent_plugins) > 0 ? [local.agent_plugins] : []

        content {
          dynamic "plugins_config" {
            for_each = agent_config.value

            content {
              name          = plugins_config.value.name
              desired_state = plugins_config.value.state
            }
          }
        }
      }

      dynamic "platform_config" {
        for_each = local.platform == null ? [] : [local.platform]

        content {
          type                                 = platform_config.value.type
          numa_nodes_per_socket                = platform_config.value.numa_nodes_per_socket
          is_symmetric_multi_threading_enabled = platform_config.value.smt
        }
      }

      dynamic "shape_config" {
        for_each = var.pool.ocpus == null ? [] : [var.pool.ocpus]

        content {
          ocpus         = shape_config.value
          memory_in_gbs = var.pool.memory_gb
        }
      }
    }
  }

  lifecycle {
    # A configuration can't be changed, and can't be deleted while a pool uses it.
    create_before_destroy = true
    replace_triggered_by  = [terraform_data.launch]
  }
}

# The provider keeps the last value of an argument that is removed, so optional arguments are stored here as well.
resource "terraform_data" "launch" {
  count = local.has_instance_configuration ? 1 : 0

  input = {
    boot_volume_vpus_per_gb = var.pool.boot_volume_vpus_per_gb
    capacity_reservation_id = var.pool.capacity_reservation_id
    defined_tags            = local.launch_tags
    kind                    = var.pool.kind # the compute cluster exists only for one of the kinds
    platform                = local.platform
  }
}
