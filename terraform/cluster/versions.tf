terraform {
  required_version = ">= 1.5"

  required_providers {
    oci = {
      source  = "oracle/oci"
      version = ">= 6.0"
    }
  }
}

# Credentials come from the environment: OCI_TENANCY_OCID, OCI_USER_OCID, OCI_FINGERPRINT, OCI_PRIVATE_KEY_PATH or OCI_AUTH.
provider "oci" {
  region              = var.region
  ignore_defined_tags = local.automatic_tags
}

# Dynamic groups and policies are written in the tenancy's home region, and copied to the others from there.
provider "oci" {
  alias               = "home"
  region              = var.home_region
  ignore_defined_tags = local.automatic_tags
}

locals {
  # A tenancy's tag defaults put these on everything; they are no difference to what is wished.
  automatic_tags = ["Oracle-Tags.CreatedBy", "Oracle-Tags.CreatedOn"]
}
