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

# Dynamic groups and policies are written in the tenancy's home region, which copies them to the other regions.
provider "oci" {
  alias               = "home"
  region              = var.home_region
  ignore_defined_tags = local.automatic_tags
}

locals {
  # A tenancy's tag defaults add these tags to everything; they are not a difference to the configuration.
  automatic_tags = ["Oracle-Tags.CreatedBy", "Oracle-Tags.CreatedOn"]
}
