variable "availability_domain" {
  description = "Availability domain of the volume and of the instance, by its full name."
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

variable "device" {
  description = "Consistent device path under which the instance sees the volume."
  type        = string
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "instance_id" {
  description = "OCID of the instance that the volume is attached to."
  type        = string
  nullable    = false
}

variable "name" {
  description = "Display name of the volume and of its attachment."
  type        = string
  nullable    = false
}

variable "size_gb" {
  description = "Size in GB. A volume can only be made larger."
  type        = number
  nullable    = false
}
