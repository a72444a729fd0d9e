"""Slurm's topology, from what the hosts report of their places in RDMA networks."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_slurm_topology
short_description: Slurm's topology of the cluster
description:
  - By C(gpucluster/slurm/topology.py) of the Python package gpucluster, which the operator's machine and the controller
    have beside their Ansible.
options:
  _terms:
    description:
      - The pools, as the inventory has them; by node, what the metadata service reports of its host; and Slurm's
        version.
    required: true
author: gpucluster
"""

EXAMPLES = """
- name: Show the switches
  ansible.builtin.debug:
    msg: "{{ lookup('gpucluster_slurm_topology', slurm_pools, {'gpu-1': {}}, '24.11.5').lines }}"
"""

RETURN = """
_raw:
  description: >-
    C(lines) of topology.conf, none where Slurm needs no topology; C(elastic), by pool the switch that the lines of its
    elastic nodes must name; C(moves), whether elastic nodes are put under the switch of their place when they join.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Asks the function."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Called by Ansible."""
        try:
            from gpucluster.node_agent.rules.rdma_place import place
            from gpucluster.slurm import topology
        except ImportError as error:
            raise AnsibleError(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        rows, hosts, version = terms
        places = {str(node): where for node, document in hosts.items() if document and (where := place(document))}
        pools = [
            topology.SlurmPool(
                str(row["name"]),
                bool(row["rdma"]),
                str(row["partition"]),
                tuple(str(node) for node in row["nodes"]),
                str(row["elastic_nodes"]),
                {str(node): places[node] for node in row["nodes"] if node in places},
            )
            for row in rows
        ]
        return [
            {
                "lines": topology.lines(topology.tree(pools, str(version))),
                "elastic": topology.elastic_switches(pools, str(version)),
                "moves": topology.moves_nodes(str(version)),
            }
        ]
