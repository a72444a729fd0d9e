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

variable "export_path" {
  description = "NFS path that the mount target offers."
  type        = string
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "name" {
  description = "Display name of the file system and its mount target."
  type        = string
  nullable    = false
}

variable "subnet_id" {
  description = "OCID of the subnet that holds the mount target."
  type        = string
  nullable    = false
}
