"""Ansible: the playbooks are run here, and the facts that they collect are evaluated here.

`runner` drives ansible-runner. `verify` is pure: facts in, checks out. May import what lies below `handover`.
"""
