"""Bastion sessions, and the ssh server that forwards them. May import `auth`, `state` and below, but not `compute`."""
