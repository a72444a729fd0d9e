"""What a control plane of Kubernetes Engine hands over to Terraform and to the hosts, and the rights that it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpucluster.handover import iam
from gpucluster.handover.kubernetes import kubernetes_variables
from gpucluster.handover.outputs import Outputs
from gpucluster.localcloud.auth.policies import matching_rule, statement
from gpucluster.spec import ClusterSpec, loads

FILE = """
version: 1
name: demo
cloud: {provider: local}
network:
  vcn_cidr: 10.93.0.0/16
  public_subnet_cidr: 10.93.0.0/24
  private_subnet_cidr: 10.93.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
pools:
  gpu: {shape: BM.GPU4.8, count: 2}
"""
OKE = """
  cpu: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 3, managed: true}
  a10: {shape: VM.GPU.A10.1, count: 1, managed: true, boot_volume_gb: 100}
scheduler: kubernetes
kubernetes:
  control_plane: oke
  release: 1.34.1
  oke: {endpoint: private, addons: {CertManager: v1.17.2, CoreDNS: null}}
"""
HERE, CLUSTER = "ocid1.compartment.oc1..c", "ocid1.cluster.oc1..k"
OUTPUT = {
    "id": CLUSTER,
    "kubernetes_version": "v1.34.1",
    "private_endpoint": "10.93.1.9:6443",
    "public_endpoint": None,
    "ca": "LS0t",
}


def with_oke(*changes: tuple[str, str]) -> ClusterSpec:
    text = f"{FILE.rstrip()}{OKE}"
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return loads(text)


def policies(spec: ClusterSpec) -> iam.Policies:
    return iam.policies(spec, compartment_id=HERE, controller_id=None)


def operator_rights(spec: ClusterSpec) -> str:
    needed = policies(spec)
    return " ".join(each.text for each in (*needed.operator, *needed.operator_tenancy))


def test_the_operator_may_create_the_control_plane_and_its_node_pools() -> None:
    private, public = operator_rights(with_oke()), operator_rights(with_oke(("endpoint: private", "endpoint: public")))
    for right in (
        "manage clusters in",
        "manage cluster-node-pools in",
        "read cluster-work-requests in",
        "use private-ips in",
        "manage dynamic-groups in tenancy",
        f"manage policies in compartment id {HERE}",
    ):
        assert right in private
        assert right in public
    assert "manage public-ips in" in public
    assert "manage public-ips in" not in private
    assert "cluster-node-pools" not in operator_rights(with_oke((", managed: true", "")))


def test_instances_of_the_cluster_may_join_and_nothing_else() -> None:
    needed = policies(with_oke())
    given = iam.node_tfvars(needed)
    assert given is not None
    [text] = given["statements"]
    assert given["dynamic_group"] == "gpucluster-demo-nodes"
    assert text == (
        f"Allow dynamic-group gpucluster-demo-nodes to {{CLUSTER_JOIN}} in compartment id {HERE} "
        f"where target.cluster.id = '{iam.ENGINE_CLUSTER}'"
    )
    assert statement(text).permissions == {"CLUSTER_JOIN"}
    rule = matching_rule(given["matching_rule"])
    assert rule.holds({"instance.compartment.id": HERE})
    assert not rule.holds({"instance.compartment.id": "ocid1.compartment.oc1..other"})
    assert any("may join the control plane" in note for note in needed.notes)
    printed = iam.text(needed).splitlines()
    assert text in printed
    assert given["matching_rule"] in printed


def test_with_a_tag_only_what_carries_it_may_join() -> None:
    needed = policies(with_oke(("scheduler:", "iam: {tag: Ops.Cluster}\nscheduler:")))
    rule = matching_rule(needed.node_rule)
    assert not rule.holds({"instance.compartment.id": HERE})
    assert rule.holds({"instance.compartment.id": HERE, "tag.ops.cluster.value": "demo"})
    assert needed.notes == ()


def test_the_controller_administers_this_kubernetes_and_not_the_resource() -> None:
    given = iam.tfvars(policies(with_oke()))
    assert given is not None
    [text] = given["compartment_statements"]
    assert text.endswith(f"in compartment id {HERE} where target.cluster.id = '{iam.ENGINE_CLUSTER}'")
    granted = statement(text).permissions
    assert granted == {"CLUSTER_USE", "CLUSTER_MANAGE"}
    assert not granted & {"CLUSTER_CREATE", "CLUSTER_UPDATE", "CLUSTER_DELETE"}


def test_no_node_joins_where_every_pool_is_managed() -> None:
    every = policies(with_oke(("  gpu: {shape: BM.GPU4.8, count: 2}\n", "")))
    assert (every.nodes, iam.node_tfvars(every)) == ((), None)
    by_hand = policies(with_oke(("scheduler:", "iam: {create: false}\nscheduler:")))
    assert by_hand.nodes
    assert iam.node_tfvars(by_hand) is None
    assert "an administrator creates these by hand" in iam.text(by_hand)


def test_hosts_get_the_private_endpoint() -> None:
    golden = Path(__file__).parents[1] / "golden" / "local_kubernetes" / "outputs.json"
    outputs = Outputs.parse({**json.loads(golden.read_text()), "oke": OUTPUT})
    assert outputs.oke is not None
    found = kubernetes_variables(with_oke(), outputs, hardware_emulated=False)
    assert found["kubernetes_control_plane"] == "oke"
    assert found["kubernetes_oke"] == {
        "id": CLUSTER,
        "region": outputs.region,
        "endpoint": "https://10.93.1.9:6443",
        "ca": "LS0t",
        "cloud_ca": "",
    }
    assert "kubernetes_oke" not in kubernetes_variables(loads(FILE), outputs, hardware_emulated=False)
    unknown = kubernetes_variables(with_oke(), replace(outputs, oke=None), hardware_emulated=False)
    assert "kubernetes_oke" not in unknown
