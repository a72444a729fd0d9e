"""Divides the GPUs of a node as its pool defines (NVIDIA's Multi-Instance GPU), at each boot before slurmd.

`collect` reads what there is, `plan` decides (pure), `apply` runs nvidia-smi and makes the links that Slurm's gres.conf
names.
"""
