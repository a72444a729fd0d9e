"""Rules that the controller and the operator's side share. Pure: nothing here touches the system.

The names, ids and ssh keys that users may have: the controller checks requests with them, and `gpucluster.spec` checks
cluster.yml with them, so that both accept the same. And what Slurm prints about nodes: the autoscaler and the health
service read it. Modules here import the standard library and rules.
"""
