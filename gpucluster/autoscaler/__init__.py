"""Elastic nodes: turns Slurm's demand into instances, and removes instances that Slurm no longer needs.

This program runs on the controller and imports nothing of provisioning. Slurm decides which job runs on which node and
when a node has been idle long enough. The autoscaler decides which instances to launch, terminate and repair, and why.

    __main__     the arguments of `gpucluster-autoscaler`
    daemon/      effects: the reconcile loop, the ledger, Slurm's commands, OCI's API
    simulation/  the same decisions on a virtual clock, with models of Slurm and of the cloud
    decide/      pure decisions
    policy       configuration: pools, limits, prices, times

Imports go down in this list; `daemon` and `simulation` do not import each other. Besides, the package may import
`gpucluster.slurm`, `gpucluster.oci`, `gpucluster.process`, `gpucluster.paths`, `gpucluster.errors` and
`gpucluster.text`.
"""
