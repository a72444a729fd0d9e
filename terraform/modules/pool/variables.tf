variable "availability_domain" {
  description = "Availability domain, by its full name."
  type        = string
  nullable    = false
}

variable "baked_image_id" {
  description = "OCID of the image that the instance configuration launches from. Null means image_id."
  type        = string
  default     = null
}

variable "cluster_name" {
  description = "Name of the cluster; the display names of the pool's own resources begin with it."
  type        = string
  nullable    = false
}

variable "compartment_id" {
  description = "OCID of the compartment."
  type        = string
  nullable    = false
}

variable "defined_tags" {
  description = "Defined tags of the pool's resources and nodes, by \"Namespace.Key\". Null leaves them to the tenancy's tag defaults."
  type        = map(string)
  default     = null
}

variable "elastic_compartment_id" {
  description = "OCID of the compartment of elastic nodes, and of a compute cluster with all of its nodes. Null means compartment_id."
  type        = string
  default     = null
}

variable "elastic_tags" {
  description = "Further defined tags of the instance configuration of a pool that can grow, and of the instances that are launched from it."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags of the pool's resources and nodes."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "hostname_prefix" {
  description = "Prefix of the nodes' host names in the subnet's DNS domain. Null for a subnet without one."
  type        = string
  default     = ""
}

variable "image_id" {
  description = "OCID of the image of the nodes that Terraform creates, and of the others if there is no baked one."
  type        = string
}

variable "name" {
  description = "Name of the pool; the names of the nodes begin with it."
  type        = string
  nullable    = false
}

variable "pool" {
  description = "Kind, shape and size of the pool; see the variable pools of the cluster."
  type = object({
    kind                    = string
    shape                   = string
    ocpus                   = optional(number)
    memory_gb               = optional(number)
    count                   = number
    max_count               = number
    node_names              = list(string)
    boot_volume_gb          = number
    boot_volume_vpus_per_gb = number
    capacity_reservation_id = optional(string)
    memory_fabric_id        = optional(string)
    platform = optional(object({
      type                  = string
      numa_nodes_per_socket = optional(string)
      smt                   = optional(bool)
    }))
    user_data    = optional(string)
    rdma         = bool
    rdma_plugins = list(string)
    # Plugins that are disabled, whatever rdma is.
    disabled_plugins = optional(list(string), [])
    # The images of single nodes, by name, while another image rolls through the pool.
    node_images     = optional(map(string), {})
    launch_image_id = optional(string)
  })
  nullable = false
}

variable "ssh_authorized_keys" {
  description = "Public keys of the default user, read at the first boot."
  type        = list(string)
  nullable    = false
}

variable "subnet_id" {
  description = "OCID of the subnet of the nodes."
  type        = string
  nullable    = false
}
