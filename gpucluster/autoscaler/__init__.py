"""Elastic nodes: turns Slurm's demand into instances, and idle nodes into nothing.

A second house on the same plot: it runs on the controller and imports nothing of provisioning. Slurm decides who runs
where, and when a node has been idle for long enough; this decides what to launch, to terminate and to repair, and why.
"""
