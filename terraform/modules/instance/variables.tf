variable "agent_plugins" {
  description = "Plugins of the Oracle Cloud Agent by name, each ENABLED or DISABLED; the others are as the image has them."
  type        = list(object({ name = string, state = string }))
  default     = []
  nullable    = false
}

variable "assign_public_ip" {
  description = "Whether the instance gets a public address."
  type        = bool
  default     = false
  nullable    = false
}

variable "availability_domain" {
  description = "Availability domain, by its full name."
  type        = string
  nullable    = false
}

variable "boot_volume_gb" {
  description = "Size of the boot volume in GB."
  type        = number
  nullable    = false
}

variable "boot_volume_vpus_per_gb" {
  description = "Performance of the boot volume, in volume performance units per GB: 10 is OCI's balanced level."
  type        = number
  default     = 10
  nullable    = false
}

variable "capacity_reservation_id" {
  description = "OCID of the capacity reservation that the instance is launched in. Null uses none."
  type        = string
  default     = null
}

variable "compartment_id" {
  description = "OCID of the compartment."
  type        = string
  nullable    = false
}

variable "compute_cluster_id" {
  description = "OCID of the compute cluster whose RDMA network the instance joins. Null joins none."
  type        = string
  default     = null
}

variable "defined_tags" {
  description = "Defined tags, by \"Namespace.Key\". Null leaves them to the tenancy's tag defaults."
  type        = map(string)
  default     = null
}

variable "freeform_tags" {
  description = "Free-form tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "hostname" {
  description = "Host name in the subnet's DNS domain. Null for a subnet without one."
  type        = string
  default     = null
}

variable "image_id" {
  description = "OCID of the image."
  type        = string
}

variable "memory_gb" {
  description = "Memory in GB, for a flexible shape only."
  type        = number
  default     = null
}

variable "name" {
  description = "Display name."
  type        = string
  nullable    = false
}

variable "ocpus" {
  description = "Number of OCPUs, for a flexible shape only."
  type        = number
  default     = null
}

variable "platform" {
  description = "Firmware settings of a bare metal host: the type that the shape needs, NUMA nodes per socket, and whether simultaneous multi-threading is on. Null keeps the settings of the shape."
  type = object({
    type                  = string
    numa_nodes_per_socket = optional(string)
    smt                   = optional(bool)
  })
  default = null
}

variable "private_ip" {
  description = "Private address that a new instance takes, of the range of the subnet. Null lets OCI choose, and changes no existing one."
  type        = string
  default     = null
}

variable "shape" {
  description = "Shape."
  type        = string
  nullable    = false
}

variable "ssh_authorized_keys" {
  description = "Public keys of the default user, read at the first boot."
  type        = list(string)
  nullable    = false
}

variable "subnet_id" {
  description = "OCID of the subnet."
  type        = string
  nullable    = false
}

variable "user_data" {
  description = "User data for cloud-init at the first boot, as plain text. Null means none."
  type        = string
  default     = null
}
