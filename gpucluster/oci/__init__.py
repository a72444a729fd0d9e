"""Facts about OCI that provisioning and the autoscaler share: tags, names, permissions, and what a refusal means.

Pure values and functions. This folder imports only the standard library, never the OCI SDK: callers pass in what the
SDK returned.
"""
