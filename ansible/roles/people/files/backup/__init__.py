"""The backup of the cluster's directory and of Slurm's accounting, and the way back.

`directory` and `accounting` know one database each, `entries` what is in the directory's, `archive` the file, `people`
the program that keeps homes and keys, and `restoring` the order of things.
"""
