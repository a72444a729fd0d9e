"""Facts about Slurm that provisioning and the autoscaler share: states of nodes and jobs, host lists, releases.

Pure values and functions. This folder imports the standard library, ClusterShell, and what the agent on the hosts knows
of Slurm too (`controller.rules`: the content of a node's line, reasons); callers run Slurm's commands and pass in what
they printed.
"""
