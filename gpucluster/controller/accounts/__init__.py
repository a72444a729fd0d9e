"""Accounts and QOS of cluster.yml in Slurm's accounting: `gpucluster-agent accounts`."""
