# The permissions of the autoscaler. Python writes the statements; `gpucluster policies` prints them.
module "iam" {
  source    = "../modules/iam"
  count     = var.iam == null ? 0 : 1
  providers = { oci.home = oci.home }

  compartment_id         = var.compartment_id
  compartment_statements = var.iam.compartment_statements
  defined_tags           = local.defined_tags
  description            = var.iam.description
  dynamic_group          = var.iam.dynamic_group
  freeform_tags          = merge(var.freeform_tags, { role = "iam", "gpucluster-compartment" = var.compartment_id })
  instance_id            = module.controller.instance.id
  tenancy_id             = var.tenancy_id
  tenancy_statements     = var.iam.tenancy_statements

  # Statements name the compartment, which must exist first.
  depends_on = [oci_identity_compartment.elastic]
}
