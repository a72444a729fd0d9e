"""Facts about Slurm that provisioning and the autoscaler share: states of nodes and jobs, host lists, reasons.

Pure values and functions. This folder imports only the standard library and ClusterShell; callers run Slurm's commands
and pass in what they printed.
"""
