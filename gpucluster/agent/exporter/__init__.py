"""Metrics of this host for Prometheus: RDMA, network, running jobs, and GPUs where no DCGM exporter is.

Imports `programs` and `rdma_files` of the agent, nothing of the checks: they judge, and this only shows.
"""
