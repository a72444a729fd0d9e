"""Facts about Slurm that the operator's side and the autoscaler share: node states, hostlists, reasons. Pure.

Imports nothing of gpucluster but `errors`.
"""
