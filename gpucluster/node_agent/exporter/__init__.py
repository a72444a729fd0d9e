"""Metrics of this host for Prometheus: RDMA, network, running jobs, and GPUs where no DCGM exporter is.

Imports `programs`, `rdma_files` and the file of the watcher of jobs, nothing of the checks: they judge, and this only
shows.
"""
