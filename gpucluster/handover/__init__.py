"""The waist of the hourglass: the wish as Terraform's variables, Terraform's outputs as Ansible's inventory.

Pure functions, tested with files. The names of HCL variables and of Ansible groups are spelled in here and nowhere else
in Python: variables.py speaks to Terraform, outputs.py hears what it made, inventory.py speaks to Ansible,
autoscaling.py to the autoscaler; nodes.py says what stands for a node.
"""

from __future__ import annotations

from gpucluster.handover.autoscaling import POLICY_VERSION, Autoscaling, autoscaler_policy
from gpucluster.handover.inventory import Members, builder_inventory, hosts, inventory, primary_gids
from gpucluster.handover.names import (
    BUILDER_GROUP,
    CLUSTER_TAG,
    builder_name,
    elastic_names,
    elastic_prefix,
    permanent_names,
    pool_group,
)
from gpucluster.handover.nodes import image_fingerprint, node_fingerprint
from gpucluster.handover.outputs import CONTRACT_VERSION, Outputs, PoolOutput
from gpucluster.handover.variables import RDMA_PLUGINS, tfvars

__all__ = [
    "BUILDER_GROUP",
    "CLUSTER_TAG",
    "CONTRACT_VERSION",
    "POLICY_VERSION",
    "RDMA_PLUGINS",
    "Autoscaling",
    "Members",
    "Outputs",
    "PoolOutput",
    "autoscaler_policy",
    "builder_inventory",
    "builder_name",
    "elastic_names",
    "elastic_prefix",
    "hosts",
    "image_fingerprint",
    "inventory",
    "node_fingerprint",
    "permanent_names",
    "pool_group",
    "primary_gids",
    "tfvars",
]
