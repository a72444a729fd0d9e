# How a node is launched that Terraform does not make itself: by the cluster network, or later by the autoscaler.
resource "oci_core_instance_configuration" "this" {
  count = local.has_instance_configuration ? 1 : 0

  compartment_id = var.compartment_id
  defined_tags   = var.defined_tags
  display_name   = local.display_name
  freeform_tags  = var.freeform_tags

  instance_details {
    instance_type = "compute"

    launch_details {
      availability_domain     = var.availability_domain
      capacity_reservation_id = var.pool.capacity_reservation_id
      compartment_id          = var.compartment_id
      compute_cluster_id      = local.compute_cluster_id
      defined_tags            = var.defined_tags
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
        image_id                = var.baked_image_id != null ? var.baked_image_id : var.image_id
        boot_volume_size_in_gbs = var.pool.boot_volume_gb
        # OCI's own level is not sent: configurations of earlier releases did not name it, and need not be made anew.
        boot_volume_vpus_per_gb = var.pool.boot_volume_vpus_per_gb == 10 ? null : var.pool.boot_volume_vpus_per_gb
      }

      dynamic "agent_config" {
        for_each = length(local.agent_plugins) > 0 ? [local.agent_plugins] : []

        content {
          dynamic "plugins_config" {
            for_each = agent_config.value

            content {
              name          = plugins_config.value
              desired_state = "ENABLED"
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
    # Nothing of a configuration can be changed, and one that a pool uses cannot be deleted.
    create_before_destroy = true
    replace_triggered_by  = [terraform_data.launch]
  }
}

# The provider keeps the last value of an argument that is taken away, so what may be taken away is remembered here as well.
resource "terraform_data" "launch" {
  count = local.has_instance_configuration ? 1 : 0

  input = {
    boot_volume_vpus_per_gb = var.pool.boot_volume_vpus_per_gb
    capacity_reservation_id = var.pool.capacity_reservation_id
    defined_tags            = var.defined_tags
    kind                    = var.pool.kind # with it the compute cluster comes and goes
    platform                = local.platform
  }
}
