variable "compartment_id" {
  description = "OCID of the compartment."
  type        = string
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags of everything in the network."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "name" {
  description = "Display name of the VCN; it begins the names of the rest."
  type        = string
  nullable    = false
}

variable "network" {
  description = "CIDR blocks of the VCN, of its public and private subnet and of the SSH clients, and the DNS label of the VCN."
  type = object({
    vcn_cidr            = string
    public_subnet_cidr  = string
    private_subnet_cidr = string
    ssh_allowed_cidrs   = list(string)
    dns_label           = string
  })
  nullable = false
}
