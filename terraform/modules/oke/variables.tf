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

variable "oke" {
  description = "Version, endpoint and address ranges; see the variable oke of the cluster."
  type = object({
    kubernetes_version = string
    endpoint           = string
    pod_cidr           = string
    service_cidr       = string
  })
  nullable = false
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
