"""The Python of a host: one path on every system, whatever its own `python3` is.

User data makes the link at the first boot, and Ansible's first task where it is missing (`systems.host_python`).
"""

from __future__ import annotations

#: The interpreter of every program that runs on a host, and of Ansible's modules.
PYTHON = "/usr/local/lib/gpucluster/python"
#: The same for a shell on a host that may have no link yet: one that was never configured. Its own
#: Python is taken then.
PYTHON_IN_SHELL = f'"$(command -v {PYTHON} || echo python3)"'
