"""Backup and restore of the cluster's directory, of Slurm's accounting, and of the control plane of Kubernetes.

`directory`, `accounting` and `control_plane` handle one database each, `entries` the directory's entries, `archive`
the file format, `jobs` what slurmctld must know of restored jobs, `user_program` calls `cluster`, and `restore` has
the order of steps. `scheduled` makes the encrypted backups of the schedule; `schedule` has their settings, and what is
recorded of them.
"""
