"""A node as a tree of files, for records of jobs."""

from __future__ import annotations

from gpucluster.node_agent.record import snapshot

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_USER": "ann", "SLURM_JOB_GPUS": "0,2-3"}
COUNTERS = "sys/class/infiniband/mlx5_0/ports/1"


# As it is: with a limit of a quarter of a second.
TAKE = snapshot.take
