"""An OCI-compatible cloud on this machine: the API, instances as containers, and a stand-in Terraform provider. `control` starts and stops
the server and imports nothing else of this package. The folders import downwards only: server, api, bastion and compute, auth, state,
engine, image, podman; `provider` is a process of its own and imports none of them.
"""
