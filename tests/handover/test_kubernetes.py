"""What hosts are told of Kubernetes, on hardware that is not emulated: from cluster.yml and Terraform's outputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.handover import configuration_diff
from gpucluster.handover.kubernetes import kubernetes_variables, pool_variables
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


def test_nodes_say_their_pool_their_place_and_their_network() -> None:
    found = of_pool()
    labels = found["kubernetes_node_labels"]
    assert (labels["gpucluster.io/pool"], labels["topology.kubernetes.io/zone"]) == ("compute", "PHX-AD-1")
    assert labels["gpucluster.io/rdma-domain"] == "exampleuniqueid"
    assert "gpucluster.io/emulated" not in labels
    assert [taint["key"] for taint in found["kubernetes_node_taints"]] == ["nvidia.com/gpu"]
    assert found["kubernetes_emulated_resources"] == {}


def test_what_a_node_has_not_is_said_so() -> None:
    found = of_pool(emulated=True)
    assert found["kubernetes_node_labels"]["gpucluster.io/emulated"] == "true"
    assert found["kubernetes_emulated_resources"] == {"nvidia.com/gpu": "8"}
    assert (
        "gpucluster.io/rdma-domain"
        not in of_pool(KUBERNETES.replace("count: 1", "count: 1, rdma: false"))["kubernetes_node_labels"]
    )
    assert of_pool(MINIMAL) == {}


def test_objects_and_their_images_follow_from_shapes_and_keys() -> None:
    def names(text: str, *, emulated: bool = False) -> tuple[set[str], list[str]]:
        found = kubernetes_variables(loads(text), hardware_emulated=emulated)
        return {each["kind"] for each in found["kubernetes_manifests"]}, found["kubernetes_images"]

    kinds, images = names(KUBERNETES)
    assert "DaemonSet" in kinds
    assert len(images) == 1
    assert names(KUBERNETES, emulated=True) == ({"Namespace"}, [])
    _, of_operator = names(f"{KUBERNETES}kubernetes: {{gpus: operator}}\n")
    assert len(of_operator) > 1
    assert names(MINIMAL) == (set(), [])


@pytest.mark.parametrize(("gpus", "said"), [("device-plugin", []), ("operator", ["kubernetes: gpus"])])
def test_a_plan_names_the_objects_that_would_change_and_does_not_show_them(gpus: str, said: list[str]) -> None:
    def settings(text: str) -> dict[str, Any]:
        variables = {**kubernetes_variables(loads(text), hardware_emulated=False), "slurm_pools": []}
        return configuration_diff.settings(variables, {})

    def record(text: str) -> dict[str, Any]:
        made = configuration_diff.record(gpucluster="1", content="c", settings=settings(text), hosts={})
        return {**made, "complete": True}

    before, after = record(KUBERNETES), record(f"{KUBERNETES}kubernetes: {{gpus: {gpus}}}\n")
    found = [str(each) for each in configuration_diff.differences(before, after)]
    assert [each for each in found if each.startswith("kubernetes: gpus")] == [
        f"{each} device-plugin -> {gpus}" for each in said
    ]
    assert any("manifests.DaemonSet" in each for each in found) is bool(said)
    assert all(len(each) < 150 for each in found)
