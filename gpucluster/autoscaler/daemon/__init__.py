"""The programs on the controller: the reconcile loop with its ledger, its clients of Slurm and OCI, and Slurm's hooks.

All effects of the autoscaler are here: files, sockets, threads, commands and API calls. What to do is decided in
`gpucluster.autoscaler.decide`, which this folder imports; the simulation is not imported.
"""
