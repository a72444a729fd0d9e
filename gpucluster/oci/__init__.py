"""Facts about OCI that the operator's side and the autoscaler share: permissions, tags, names, refusals. Pure.

Imports nothing of gpucluster but `errors`.
"""
