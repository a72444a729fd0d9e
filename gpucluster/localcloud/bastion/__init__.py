"""Bastion sessions and the ssh server that forwards them. May import `auth`, `state` and below; not `compute`, and not `api`."""
