"""What hosts are told of Kubernetes, on hardware that is not emulated: from cluster.yml and Terraform's outputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.handover.kubernetes import offered as node_capacity
from gpucluster.handover.kubernetes import pool_variables, system_images, system_manifests
from gpucluster.handover.outputs import Outputs
from gpucluster.spec import loads
from tests.spec.spec_texts import MINIMAL

GOLDEN = Path(__file__).parents[1] / "golden" / "local_kubernetes" / "outputs.json"
NETWORK = "ocid1.clusternetwork.oc1.iad.exampleuniqueid"
KUBERNETES = f"{MINIMAL}scheduler: kubernetes\n"


def of_pool(text: str = KUBERNETES, *, emulated: bool = False) -> dict[str, Any]:
    outputs = Outputs.parse(json.loads(GOLDEN.read_text()))
    pool = replace(outputs.pools["compute"], cluster_network_id=NETWORK, availability_domain="Uocm:PHX-AD-1")
    spec = loads(text)
    given = replace(outputs, pools={"compute": pool})
    return pool_variables(spec, "compute", spec.pools["compute"], given, hardware_emulated=emulated)


def test_nodes_show_their_pool_their_place_and_their_network() -> None:
    found = of_pool()
    labels = found["kubernetes_node_labels"]
    assert (labels["gpucluster.io/pool"], labels["topology.kubernetes.io/zone"]) == ("compute", "PHX-AD-1")
    assert labels["gpucluster.io/rdma-domain"] == "exampleuniqueid"
    assert "gpucluster.io/emulated" not in labels
    assert [taint["key"] for taint in found["kubernetes_node_taints"]] == ["nvidia.com/gpu"]


def test_what_a_node_lacks_is_reported() -> None:
    assert of_pool(emulated=True)["kubernetes_node_labels"]["gpucluster.io/emulated"] == "true"
    without_rdma = of_pool(KUBERNETES.replace("count: 1", "count: 1, rdma: false"))
    assert "gpucluster.io/rdma-domain" not in without_rdma["kubernetes_node_labels"]
    assert of_pool(MINIMAL) == {}


def test_objects_and_their_images_follow_from_shapes_and_keys() -> None:
    spec, operator = loads(KUBERNETES), loads(f"{KUBERNETES}kubernetes: {{gpus: operator}}\n")
    assert "DaemonSet" in {each["kind"] for each in system_manifests(spec, hardware_emulated=False)}
    assert {each["kind"] for each in system_manifests(spec, hardware_emulated=True)} == {"Namespace"}
    images = system_images(spec, hardware_emulated=False)
    assert len(images) == 1
    # Each host is asked for these, the operator's are its administrator's matter.
    assert of_pool()["kubernetes_system_images"] == images
    assert of_pool(emulated=True)["kubernetes_system_images"] == []
    assert len(system_images(operator, hardware_emulated=False)) > len(images)


DIVIDED = KUBERNETES.replace(
    "shape: BM.GPU4.8, count: 1",
    'shape: BM.GPU.H100.8, count: 1, gpus: {mig: [{devices: [0], mig_devices: {"1g.10gb+me": 1, "3g.40gb": 1}}]}',
)


def test_divided_gpus_of_a_pool_are_in_everything_that_its_nodes_get() -> None:
    found = of_pool(DIVIDED, emulated=True)
    offered = {"nvidia.com/gpu": "7", "nvidia.com/mig-1g.10gb.me": "1", "nvidia.com/mig-3g.40gb": "1"}
    # In the local cloud the scheduler, quotas and drains are real with these numbers.
    assert found["kubernetes_emulated_devices"] == offered
    assert found["kubernetes_node_labels"]["gpucluster.io/mig-3g.40gb"] == "1"
    spec = loads(DIVIDED)
    (plugin,) = [each for each in system_manifests(spec, hardware_emulated=False) if each["kind"] == "DaemonSet"]
    environment = plugin["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "MIG_STRATEGY", "value": "mixed"} in environment
    capacity = node_capacity(spec, spec.pools["compute"])
    assert {name: str(number) for name, number in capacity.items() if "nvidia" in name} == offered
