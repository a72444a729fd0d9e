"""What this machine keeps of one cluster in `.gpucluster/`: the lock, runs and their log, saved state, login keys.

May import `terraform`, `spec` and what lies below them; talks to no service.
"""
