"""The cluster that the benchmarks build: the same but for its pools."""

from __future__ import annotations


def cluster_yml(pools: str) -> str:
    """Its description.

    Args:
        pools: lines of YAML, such as `compute: {shape: BM.GPU4.8, count: 2}`.
    """
    indented = "\n".join(f"  {line}" for line in pools.splitlines())
    return f"""\
version: 1
name: bench
cloud: {{provider: local}}
network:
  vcn_cidr: 10.91.0.0/16
  public_subnet_cidr: 10.91.0.0/24
  private_subnet_cidr: 10.91.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}}
pools:
{indented}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
"""
