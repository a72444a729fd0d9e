resource "oci_core_instance" "this" {
  availability_domain  = var.availability_domain
  compartment_id       = var.compartment_id
  compute_cluster_id   = var.compute_cluster_id
  display_name         = var.name
  freeform_tags        = var.freeform_tags
  preserve_boot_volume = false
  shape                = var.shape

  metadata = {
    ssh_authorized_keys = join("\n", var.ssh_authorized_keys)
  }

  create_vnic_details {
    assign_public_ip = var.assign_public_ip
    display_name     = var.name
    hostname_label   = var.hostname
    subnet_id        = var.subnet_id
  }

  instance_options {
    are_legacy_imds_endpoints_disabled = true
  }

  source_details {
    source_type             = "image"
    source_id               = var.image_id
    boot_volume_size_in_gbs = var.boot_volume_gb
  }

  dynamic "agent_config" {
    for_each = length(var.agent_plugins) > 0 ? [var.agent_plugins] : []

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
    for_each = var.ocpus == null ? [] : [var.ocpus]

    content {
      ocpus         = shape_config.value
      memory_in_gbs = var.memory_gb
    }
  }

  timeouts {
    create = "60m" # a bare metal GPU host is up after 10 to 30 minutes
    delete = "60m"
  }

  lifecycle {
    # The keys are read at the first boot, and a change would replace the instance.
    ignore_changes = [metadata]
  }
}
