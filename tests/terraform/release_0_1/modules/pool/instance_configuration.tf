# How a node is launched that Terraform does not make itself: by the cluster network, or later by the autoscaler.
resource "oci_core_instance_configuration" "this" {
  count = local.has_instance_configuration ? 1 : 0

  compartment_id = var.compartment_id
  display_name   = local.display_name
  freeform_tags  = var.freeform_tags

  instance_details {
    instance_type = "compute"

    launch_details {
      availability_domain = var.availability_domain
      compartment_id      = var.compartment_id
      compute_cluster_id  = local.compute_cluster_id
      freeform_tags       = var.freeform_tags
      shape               = var.pool.shape

      metadata = {
        ssh_authorized_keys = join("\n", var.ssh_authorized_keys)
      }

      create_vnic_details {
        assign_public_ip = false
        subnet_id        = var.subnet_id
      }

      instance_options {
        are_legacy_imds_endpoints_disabled = true
      }

      source_details {
        source_type             = "image"
        image_id                = coalesce(var.baked_image_id, var.image_id)
        boot_volume_size_in_gbs = var.pool.boot_volume_gb
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
  }
}
