"""What this machine stores of one cluster in `.gpucluster/`: the lock, runs and their log, saved state, login keys.

May import `spec`, `ssh` and what is below them; calls no service.
"""
