terraform {
  required_version = ">= 1.5"

  required_providers {
    oci = {
      source  = "oracle/oci"
      version = ">= 6.0"
      # Dynamic groups and policies are written in the tenancy's home region only.
      configuration_aliases = [oci.home]
    }
  }
}
