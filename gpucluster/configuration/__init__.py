"""Ansible: running the playbooks that configure hosts and that collect facts.

`runner` is the only module that imports ansible-runner. May import what is below `handover`.
"""
