"""Ansible: the playbooks run here, and the facts that they collect are checked here.

`runner` is the only module that imports ansible-runner. `verify` is pure: facts in, checks out. May import what is
below `handover`.
"""
