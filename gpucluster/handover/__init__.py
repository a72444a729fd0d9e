"""The data that is handed from one tool to the next: from the spec to Terraform, and from Terraform to Ansible.

variables.py makes Terraform's variables, outputs.py reads Terraform's outputs, inventory.py makes Ansible's inventory,
autoscaling.py the autoscaler's policy, user_data.py the user data of instances, iam.py the policy statements for OCI;
nodes.py computes the fingerprint of a node, configuration_diff.py compares two configurations of the hosts, and
names.py has the names of hosts and groups. The names of HCL variables and of Ansible groups are in this folder and
nowhere else in Python.

Everything here is pure: no clock, files (but its own scripts), sockets or threads. May import `cloud` and what
is below it, but of the folders with effects (`cloud`, `artifacts`, `ssh`) plain data types only; a test checks that.
"""

from __future__ import annotations

from gpucluster.handover.autoscaling import POLICY_VERSION, Autoscaling, autoscaler_policy
from gpucluster.handover.facts_requests import Collection, collection, rdma_nodes
from gpucluster.handover.inventory import (
    Members,
    builder_inventory,
    directory_groups,
    hosts,
    inventory,
    people,
    primary_gids,
    standby_host,
    upgrading_inventory,
)
from gpucluster.handover.names import (
    BUILDER_GROUP,
    LOGIN,
    UPGRADING_GROUP,
    builder_name,
    elastic_names,
    elastic_prefix,
    login_names,
    permanent_names,
    pool_group,
)
from gpucluster.handover.nodes import image_fingerprint, node_fingerprint
from gpucluster.handover.outputs import (
    CONTRACT_VERSION,
    RECORDED,
    ROLLOUTS,
    ROLLOUTS_TYPE,
    SERVICE,
    SERVICE_TYPE,
    SSH_AUTHORITY,
    STANDBY_HOST,
    Identity,
    OkeOutput,
    Outputs,
    PoolOutput,
    ServiceRecord,
    rollouts,
)
from gpucluster.handover.variables import RDMA_PLUGINS, tfvars

__all__ = [
    "BUILDER_GROUP",
    "CONTRACT_VERSION",
    "LOGIN",
    "POLICY_VERSION",
    "RDMA_PLUGINS",
    "RECORDED",
    "ROLLOUTS",
    "ROLLOUTS_TYPE",
    "SERVICE",
    "SERVICE_TYPE",
    "SSH_AUTHORITY",
    "STANDBY_HOST",
    "UPGRADING_GROUP",
    "Autoscaling",
    "Collection",
    "Identity",
    "Members",
    "OkeOutput",
    "Outputs",
    "PoolOutput",
    "ServiceRecord",
    "autoscaler_policy",
    "builder_inventory",
    "builder_name",
    "collection",
    "directory_groups",
    "elastic_names",
    "elastic_prefix",
    "hosts",
    "image_fingerprint",
    "inventory",
    "login_names",
    "node_fingerprint",
    "people",
    "permanent_names",
    "pool_group",
    "primary_gids",
    "rdma_nodes",
    "rollouts",
    "standby_host",
    "tfvars",
    "upgrading_inventory",
]
