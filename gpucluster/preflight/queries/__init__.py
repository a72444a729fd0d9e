"""Queries: reading the facts, from the cloud (cloud.py, through client.py) and from this machine (local.py).

A query never raises because a fact can't be read: it returns an `Unknown` with the reason. Queries only read, and
decide nothing. May import `cloud` and what is below it, and `facts` and `requirements` of `preflight`.
"""
