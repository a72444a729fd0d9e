"""An OCI-compatible cloud on this machine: the API, instances as containers, and a stand-in Terraform provider."""
