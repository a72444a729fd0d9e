variable "compartment_id" {
  description = "OCID of the compartment."
  type        = string
  nullable    = false
}

variable "defined_tags" {
  description = "Defined tags of all network resources, by \"Namespace.Key\". Null leaves them to the tenancy's tag defaults."
  type        = map(string)
  default     = null
}

variable "elastic_tags" {
  description = "Further defined tags of the private subnet, in which elastic nodes are launched."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags of all network resources."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "has_public_kubernetes" {
  description = "Whether the API of Kubernetes answers in the public subnet, for the SSH clients' blocks."
  type        = bool
  default     = false
  nullable    = false
}

variable "name" {
  description = "Display name of the VCN; the names of the other resources begin with it."
  type        = string
  nullable    = false
}

variable "network" {
  description = "How the cluster is reached, CIDR blocks of the VCN, of its subnets and of the SSH clients, the DNS label of the VCN, and the OCIDs of existing resources; see the variable network of the cluster."
  type = object({
    access              = string
    vcn_cidr            = string
    public_subnet_cidr  = optional(string)
    private_subnet_cidr = string
    vcn_id              = optional(string)
    public_subnet_id    = optional(string)
    private_subnet_id   = optional(string)
    ssh_allowed_cidrs   = list(string)
    dns_label           = string
  })
  nullable = false
}
