"""Checks: pure functions from a spec and facts to findings. No clock, files, sockets or threads.

A check reports nothing about a fact that is `Unknown`; `evaluate` reports those. May import `spec`,
`handover`, and `facts` and `requirements` of `preflight`.
"""
