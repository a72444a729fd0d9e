"""An OCI-compatible cloud on this machine: the API, instances as containers, and a stand-in Terraform provider.

`control` starts and stops the server; it imports no other module of this package. The folders import downwards only:
server; api; bastion and compute; auth; state; engine; image; podman. `provider` is a program of its own and imports
none of them.
"""
