"""Rules that programs on hosts and the operator's side share. Pure: nothing here touches the system.

The names, ids and ssh keys that users may have: the agent checks requests with them on the controller, and
`gpucluster.spec` checks cluster.yml with them, so that both accept the same. And what Slurm prints about nodes: the
autoscaler and the agent read it, and write reasons. Modules here import the standard library and each other.
"""
