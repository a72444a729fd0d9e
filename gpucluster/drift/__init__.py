"""Drift: what of a cluster is not as cluster.yml, Terraform's state and the last apply have it. Pure.

`lifecycle.drift` collects what is compared here.
"""
