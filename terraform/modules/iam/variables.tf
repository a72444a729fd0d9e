variable "compartment_id" {
  description = "OCID of the cluster's compartment, which its policy is attached to."
  type        = string
  nullable    = false
}

variable "compartment_statements" {
  description = "Statements about the cluster's compartment. They name the dynamic group."
  type        = list(string)
  nullable    = false
}

variable "defined_tags" {
  description = "Defined tags, by `Namespace.Key`; null leaves them to the tenancy's tag defaults."
  type        = map(string)
  default     = null
}

variable "description" {
  description = "Description of the group and its policies: OCI requires one for each."
  type        = string
  nullable    = false
}

variable "dynamic_group" {
  description = "Name of the dynamic group, unique in the tenancy. The policies are named after it."
  type        = string
  nullable    = false
}

variable "freeform_tags" {
  description = "Free-form tags."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "matching_rule" {
  description = "Rule of the dynamic group: which instances it has."
  type        = string
  nullable    = false
}

variable "tenancy_id" {
  description = "OCID of the tenancy."
  type        = string
  nullable    = false
}

variable "tenancy_statements" {
  description = "Statements that a policy of the compartment can't make. They name the dynamic group."
  type        = list(string)
  default     = []
  nullable    = false
}
