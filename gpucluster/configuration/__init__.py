"""Ansible: running the playbooks, and checking the facts that they collect.

`runner` is the only module that imports ansible-runner. `verify` is pure: facts in, checks out. May import what is
below `handover`.
"""
