"""A cluster of one node whose controller is lost, replaced or given up while a job runs."""

from __future__ import annotations

from tests.e2e.site_harness import NETWORK

GATE = "/mnt/home/alice/gate"
HOST_KEY = "cat /etc/ssh/ssh_host_ed25519_key.pub"
ACCOUNTED = "sacct -a -X -n -P -S 2020-01-01 -o JobIDRaw,JobName,State"


def cluster_yml(name: str, controller: str) -> str:
    """The cluster file.

    Args:
        controller: its line.
    """
    return f"""\
version: 1
name: {name}
cloud: {{provider: local}}
{NETWORK}{controller}
pools:
  compute: {{shape: BM.GPU4.8, count: 1}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
"""
