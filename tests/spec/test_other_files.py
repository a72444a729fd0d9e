"""Files of other tools, in the forms that their own repositories have: one message, with the way to a cluster file."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL

PARALLEL_CLUSTER = """\
Region: us-east-1
Image:
  Os: alinux2
HeadNode:
  InstanceType: t3.micro
  Networking:
    SubnetId: subnet-12345678
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: myqueue
      ComputeResources:
        - Name: t3micro
          InstanceType: t3.micro
"""
TEMPLATE = "{%- set a = 1 %}\n" + PARALLEL_CLUSTER
PARALLEL_CLUSTER_2 = """\
[global]
cluster_template = default

[cluster default]
key_name = test
"""
BUILD_IMAGE = "Build:\n  InstanceType: g4dn.xlarge\n  ParentImage: ami-1\nImage:\n  Name: a\n"
BLUEPRINT = """\
---

blueprint_name: hpc-slurm

vars:
  project_id:  ## Set the project here ##
  deployment_name: hpc-slurm

deployment_groups:
- group: primary
  modules:
  - id: network
    source: modules/network/vpc
"""
DEPLOYMENT = "terraform_backend_defaults:\n  type: gcs\nvars:\n  deployment_name: a\n"
SETTINGS_ALONE = "vars:\n  deployment_name: a\n  region: b\n"
MAGIC_CASTLE = """\
terraform {
  required_version = ">= 1.5.7"
}

module "openstack" {
  source         = "git::https://github.com/ComputeCanada/magic_castle.git//openstack"
  cluster_name = "phoenix"
  instances = {
    mgmt  = { type = "p4-6gb", tags = ["puppet", "mgmt", "nfs"], count = 1 }
  }
}
"""
STACK = '{"data": {"display-name": "hpc", "variables": {"targetCompartment": "a", "node_count": "2"}}, "etag": "x"}'
QUEUES = "---\n  queues:\n    - name: compute\n      instance_types: []\n"

#: The text, words of the message, and of its hint.
FILES = {
    "ParallelCluster": (PARALLEL_CLUSTER, "a file of AWS ParallelCluster", "gpucluster init --cloud oci"),
    "ParallelCluster, a template": (TEMPLATE, "a file of AWS ParallelCluster", "gpucluster init --cloud oci"),
    "ParallelCluster 2": (PARALLEL_CLUSTER_2, "a file of AWS ParallelCluster", "gpucluster init --cloud oci"),
    "pcluster build-image": (BUILD_IMAGE, "pcluster build-image", "gpucluster init --cloud oci"),
    "Cluster Toolkit": (BLUEPRINT, "a file of Google Cluster Toolkit", "migrate-from-other-tools.md"),
    "Cluster Toolkit, a deployment": (DEPLOYMENT, "a file of Google Cluster Toolkit", "migrate-from-other-tools.md"),
    "Cluster Toolkit, settings": (SETTINGS_ALONE, "a file of Google Cluster Toolkit", "migrate-from-other-tools.md"),
    "Magic Castle": (MAGIC_CASTLE, "a file of Magic Castle", "migrate-from-other-tools.md"),
    "oci-hpc": (STACK, "marketplace's HPC stack (oci-hpc)", "gpucluster migrate orm FILE"),
    "oci-hpc, the API": (STACK[9:-14], "marketplace's HPC stack (oci-hpc)", "gpucluster migrate orm FILE"),
    "oci-hpc, flat": ('{"targetCompartment": "a", "ad": "b"}', "HPC stack (oci-hpc)", "gpucluster migrate orm FILE"),
    "oci-hpc, tfvars": ('ad = "b"\ncluster_network_shape="c"\n', "HPC stack (oci-hpc)", "gpucluster migrate orm FILE"),
    "oci-hpc, queues.conf": (QUEUES, "queues.conf", "a pool for each further instance type"),
    "Terraform": ('variable "a" {\n  type = string\n}\n', "a file of Terraform", "gpucluster init"),
    "Kubernetes": ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "a file of Kubernetes", "gpucluster init"),
    "Docker Compose": ("services:\n  web: {image: a}\n", "a file of Docker Compose", "gpucluster init"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_tool_gets_one_message_with_the_way(name: str) -> None:
    text, words, hint = FILES[name]
    with pytest.raises(InputError) as caught:
        loads(text)
    (finding,) = caught.value.findings
    assert (finding.line, finding.column) == (1, 1)
    assert words in finding.message
    assert hint in finding.hint


@pytest.mark.parametrize("fault", ["\tname: x\n", "resource: {\n", "a: b: c\n", "HeadNode: {}\n", "vars: {}\n"])
def test_a_cluster_file_with_a_fault_keeps_its_own_messages(fault: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(LOCAL + fault)
    assert "not of gpucluster" not in str(caught.value)
