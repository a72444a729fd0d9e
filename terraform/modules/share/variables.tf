variable "allowed_cidr" {
  description = "CIDR block whose hosts may mount the file system."
  type        = string
  nullable    = false
}

variable "availability_domain" {
  description = "Availability domain, by its full name."
  type        = string
  nullable    = false
}

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

variable "export_path" {
  description = "NFS path of the export."
  type        = string
  nullable    = false
}

variable "export_set_id" {
  description = "OCID of the export set of an existing mount target. No effect with own_mount_target."
  type        = string
  default     = null
}

variable "file_system_id" {
  description = "OCID of an existing file system of the same availability domain, which stays when the other resources are destroyed. Null creates one."
  type        = string
  default     = null
}

variable "freeform_tags" {
  description = "Free-form tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "mount_target_ip" {
  description = "Address of that mount target. No effect with own_mount_target."
  type        = string
  default     = null
}

variable "name" {
  description = "Display name of the file system and its mount target."
  type        = string
  nullable    = false
}

variable "own_mount_target" {
  description = "Whether a mount target is created."
  type        = bool
  nullable    = false
}

variable "read_only" {
  description = "Whether the export lets no host write."
  type        = bool
  default     = false
  nullable    = false
}

variable "subnet_id" {
  description = "OCID of the subnet that holds the mount target."
  type        = string
  nullable    = false
}

variable "throughput_gbps" {
  description = "Throughput of an existing mount target, in Gbps: 1, 20, 40 or 80. Null leaves it as it is."
  type        = number
  default     = null
}
