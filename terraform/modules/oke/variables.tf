variable "compartment_id" {
  description = "OCID of the compartment."
  type        = string
  nullable    = false
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

variable "name" {
  description = "Name of the cluster in OKE."
  type        = string
  nullable    = false
}

variable "node_pools" {
  description = "Node pools by name: as node_pools of the variable oke of the cluster, with the OCID of the image and the full name of the availability domain."
  type = map(object({
    availability_domain     = string
    boot_volume_gb          = number
    capacity_reservation_id = optional(string)
    count                   = number
    image_id                = string
    labels                  = map(string)
    memory_gb               = optional(number)
    ocpus                   = optional(number)
    shape                   = string
    user_data               = optional(string)
  }))
  default  = {}
  nullable = false
}

variable "node_subnet_id" {
  description = "OCID of the subnet of the nodes of node pools."
  type        = string
  nullable    = false
}

variable "oke" {
  description = "Version, endpoint, address ranges and add-ons; see the variable oke of the cluster."
  type = object({
    kubernetes_version = string
    endpoint           = string
    pod_cidr           = string
    service_cidr       = string
    addons             = map(string)
    addon_affinity     = map(string)
  })
  nullable = false
}

variable "ssh_authorized_keys" {
  description = "Public keys of the default user of the nodes of node pools, read at the first boot."
  type        = list(string)
  nullable    = false
}

variable "subnet_id" {
  description = "OCID of the subnet of the endpoint; another one makes another cluster."
  type        = string
  nullable    = false
}

variable "vcn_id" {
  description = "OCID of the VCN."
  type        = string
  nullable    = false
}
