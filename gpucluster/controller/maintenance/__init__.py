"""Maintenance that Oracle announces: a reservation in Slurm for each window, and a word to the owners of jobs.

`events` reads what the reader has written (`gpucluster-autoscaler maintenance`, which alone may ask the cloud);
`policy` decides, pure; `slurm` has Slurm's commands; `control` carries out, within the health service.
"""
