"""Networks of pods with RDMA: each interface of a shape by its place."""

from __future__ import annotations

import json
from typing import cast, get_args

import pytest

from gpucluster import shapes
from gpucluster.kubernetes import manifests
from gpucluster.kubernetes.manifests import networks
from gpucluster.node_agent.rules.devices import NETWORKS
from gpucluster.shapes import Shape
from tests.kubernetes.schemas import validate, validate_all
from tests.kubernetes.test_system import ALL, _kinds, _system


def test_emulated_hardware_has_no_plugin_that_finds_nothing() -> None:
    for access in get_args(networks.RdmaAccess):
        assert _kinds(_system("BM.GPU4.8", access=access, emulated=True)) == {"Namespace gpucluster-system"}


@pytest.mark.parametrize("shape", [shape for shape in ALL if shape.rdma_pci_addresses], ids=lambda shape: shape.name)
def test_each_rdma_interface_of_a_shape_is_attached_by_its_place(shape: Shape) -> None:
    made = networks.attachments(shape, "192.168.0.0/16")
    configs = [json.loads(each["spec"]["config"]) for each in made]
    assert [config["plugins"][0]["pciBusID"] for config in configs] == list(shape.rdma_pci_addresses)
    for config in configs:
        moved, *chained = config["plugins"]
        assert (moved["type"], moved["ipam"]["type"]) == ("host-device", "whereabouts")
        assert [each["type"] for each in chained] == ["rdma", "tuning"]
        assert chained[0]["deviceID"] == moved["pciBusID"]
        assert chained[1]["mtu"] == 4220
    validate_all(made)
    asked = networks.pod_rdma("device", shape, privileged=False).annotations[NETWORKS].split(",")
    assert asked == [f"gpucluster-system/{each['metadata']['name']}" for each in made]


@pytest.mark.parametrize(("name", "count"), [("BM.GPU4.8", 16), ("BM.GPU.H100.8", 16), ("BM.GPU.H200.8", 8)])
def test_virtual_functions_of_a_shape(name: str, count: int) -> None:
    policy = next(each for each in _system(name, access="sr-iov") if each["kind"] == "SriovNetworkNodePolicy")
    spec = policy["spec"]
    assert (spec["mtu"], spec["numVfs"], spec["externallyManaged"]) == (4220, 1, True)
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": name}
    assert len(spec["nicSelector"]["rootDevices"]) == count
    asked = networks.pod_rdma("sr-iov", shapes.get(name), privileged=False)
    assert asked.container["resources"]["limits"] == {"nvidia.com/rdma-vf": str(count)}
    assert len(asked.annotations[NETWORKS].split(",")) == count
    assert not asked.privileged
    values = networks.network_operator_values()
    assert values["sriovNetworkOperator"]["enabled"] is True


def test_shapes_of_other_makers_have_no_policy_of_nvidias_operator() -> None:
    assert not networks.has_virtual_functions(shapes.get("BM.GPU.MI355X.8"))
    assert networks.virtual_functions([shapes.get("BM.GPU.MI355X.8")], "192.168.0.0/16") == []


@pytest.mark.parametrize("access", get_args(networks.RdmaAccess))
@pytest.mark.parametrize("name", ["BM.GPU4.8", "BM.GPU.A10.4"])
@pytest.mark.parametrize("privileged", [True, False])
def test_a_pod_with_rdma_is_valid(access: str, name: str, privileged: bool) -> None:
    need = networks.pod_rdma(cast("networks.RdmaAccess", access), shapes.get(name), privileged=privileged)
    container = {"name": "work", "image": "example.org/nccl:1", **need.container}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": manifests.metadata("p", "default", annotations=need.annotations),
        "spec": {**need.spec, "containers": [container], "volumes": list(need.volumes)},
    }
    validate(pod)
    more_rights = privileged and name == "BM.GPU4.8"
    assert ("hostNetwork" in need.spec) is (access == "host" and more_rights)
    assert need.privileged is (access != "sr-iov" and more_rights)
