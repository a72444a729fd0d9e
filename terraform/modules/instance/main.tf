resource "oci_core_instance" "this" {
  availability_domain     = var.availability_domain
  capacity_reservation_id = var.capacity_reservation_id
  compartment_id          = var.compartment_id
  compute_cluster_id      = var.compute_cluster_id
  defined_tags            = var.defined_tags
  display_name            = var.name
  freeform_tags           = var.freeform_tags
  preserve_boot_volume    = false
  shape                   = var.shape

  metadata = merge(
    { ssh_authorized_keys = join("\n", var.ssh_authorized_keys) },
    var.user_data == null ? {} : { user_data = base64encode(var.user_data) },
  )

  create_vnic_details {
    assign_public_ip = var.assign_public_ip
    display_name     = var.name
    hostname_label   = var.hostname
    private_ip       = var.private_ip
    subnet_id        = var.subnet_id
  }

  instance_options {
    are_legacy_imds_endpoints_disabled = true
  }

  source_details {
    source_type             = "image"
    source_id               = var.image_id
    boot_volume_size_in_gbs = var.boot_volume_gb
    boot_volume_vpus_per_gb = var.boot_volume_vpus_per_gb
  }

  dynamic "agent_config" {
    for_each = length(var.agent_plugins) > 0 ? [var.agent_plugins] : []

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
    for_each = var.platform == null ? [] : [var.platform]

    content {
      type                                 = platform_config.value.type
      numa_nodes_per_socket                = platform_config.value.numa_nodes_per_socket
      is_symmetric_multi_threading_enabled = platform_config.value.smt
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
    # A bare metal GPU host boots in 10 to 30 minutes, and takes longer if its firmware gets other settings.
    create = "90m"
    update = "90m"
    delete = "90m"
  }

  lifecycle {
    # Keys and user data are read at the first boot only, and a change would replace the instance. No API returns the compute
    # cluster of an instance: after an import it is missing in the state, which would replace the instance, too.
    # The tag names the run of gpucluster that holds the cluster, where the network is not its own.
    ignore_changes       = [metadata, compute_cluster_id, freeform_tags["gpucluster-lock"]]
    replace_triggered_by = [terraform_data.compute_cluster]
  }
}

# Another compute cluster makes another instance; to create this resource replaces none. It can't have a count: Terraform
# refuses a trigger that has no instance.
resource "terraform_data" "compute_cluster" {
  input = var.compute_cluster_id
}
