"""What gpucluster knows of the operating systems of hosts: which are supported, and with which Python they run.

`matrix` is the support matrix, `host_python` the Python of each system and the script that provides it. What a role
needs of a system (packages, paths, units) is in `ansible/vars/os`. May import `agent` and what lies below it.
"""
