locals {
  # Python's statements have a placeholder for it: it is known here only.
  oke_id = coalesce(one(module.oke[*].cluster.id), "none")
}

# The permissions of the controller: of its autoscaler, and those in a control plane of Kubernetes Engine. Python writes the statements; `gpucluster policies` prints them.
module "iam" {
  source    = "../modules/iam"
  count     = var.iam == null ? 0 : 1
  providers = { oci.home = oci.home }

  compartment_id         = var.compartment_id
  compartment_statements = [for statement in var.iam.compartment_statements : replace(statement, "OCID_OF_THE_CLUSTER", local.oke_id)]
  defined_tags           = local.defined_tags
  description            = var.iam.description
  dynamic_group          = var.iam.dynamic_group
  freeform_tags          = merge(var.freeform_tags, { role = "iam", "gpucluster-compartment" = var.compartment_id })
  # The controller only: a group of the whole compartment would give its permissions to root of every compute node.
  matching_rule      = length(local.controllers) == 1 ? "instance.id = '${module.controller.instance.id}'" : "any {${join(", ", [for host in local.controllers : "instance.id = '${host.id}'"])}}"
  tenancy_id         = var.tenancy_id
  tenancy_statements = var.iam.tenancy_statements

  # Statements name the compartment, which must exist first.
  depends_on = [oci_identity_compartment.elastic]
}

# What lets the instances of pools join a control plane of Kubernetes Engine.
module "node_iam" {
  source    = "../modules/iam"
  count     = var.oke == null || var.node_iam == null ? 0 : 1
  providers = { oci.home = oci.home }

  compartment_id         = var.compartment_id
  compartment_statements = [for statement in var.node_iam.statements : replace(statement, "OCID_OF_THE_CLUSTER", local.oke_id)]
  defined_tags           = local.defined_tags
  description            = var.node_iam.description
  dynamic_group          = var.node_iam.dynamic_group
  freeform_tags          = merge(var.freeform_tags, { role = "iam", "gpucluster-compartment" = var.compartment_id })
  matching_rule          = var.node_iam.matching_rule
  tenancy_id             = var.tenancy_id
}
