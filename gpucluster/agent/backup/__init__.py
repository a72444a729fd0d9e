"""Backup and restore of the cluster's directory and of Slurm's accounting.

`directory` and `accounting` handle one database each, `entries` the directory's entries, `archive` the file format,
`jobs` what slurmctld must know of restored jobs, `user_program` calls `cluster`, and `restore` has the order of steps.
"""
