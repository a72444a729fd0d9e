"""Labels and taints that nodes get, for every shape of the catalogue."""

from __future__ import annotations

import re

import pytest

from gpucluster import shapes
from gpucluster.kubernetes import labels

ALL = list(shapes.catalogue().values())
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_OCID = "ocid1.clusternetwork.oc1.iad." + "a" * 49 + "bcdefghijkl"


def _of(name: str, **more: object) -> dict[str, str]:
    given = {"elastic": False, "zone": "Uocm:PHX-AD-1", "rdma_network": None, **more}
    return labels.node_labels("compute", shapes.get(name), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.name)
def test_every_label_is_one_that_the_api_takes_and_kubelet_may_set(shape: shapes.Shape) -> None:
    for name, value in _of(shape.name, rdma_network=_OCID, emulated=True).items():
        domain, _slash, rest = name.partition("/")
        assert _VALUE.fullmatch(value), f"{name}={value}"
        assert _NAME.fullmatch(rest)
        # What the admission plugin NodeRestriction lets a kubelet set below these domains.
        allowed = {"topology.kubernetes.io/zone", "node.kubernetes.io/instance-type"}
        assert not domain.endswith(("kubernetes.io", "k8s.io")) or name in allowed


def test_a_node_shows_its_pool_shape_place_and_gpus() -> None:
    assert _of("BM.GPU4.8", rdma_network=_OCID) == {
        "gpucluster.io/pool": "compute",
        "gpucluster.io/shape": "BM.GPU4.8",
        "node.kubernetes.io/instance-type": "BM.GPU4.8",
        "gpucluster.io/elastic": "false",
        "topology.kubernetes.io/zone": "PHX-AD-1",
        "gpucluster.io/gpu-vendor": "nvidia",
        "gpucluster.io/gpu-type": "a100",
        "gpucluster.io/gpu-count": "8",
        "nvidia.com/gpu.present": "true",
        "gpucluster.io/rdma-domain": "a" * 49 + "bcdefghijkl",
        "gpucluster.io/rdma-devices": "16",
    }
    assert "gpucluster.io/gpu-type" not in _of("VM.Standard.E5.Flex")
    for other in ("VM.Standard.E5.Flex", "BM.GPU.MI300X.8"):
        assert "nvidia.com/gpu.present" not in _of(other)
    assert _of("BM.GPU4.8", emulated=True)["gpucluster.io/emulated"] == "true"
    assert "gpucluster.io/emulated" not in _of("VM.Standard.E5.Flex", emulated=True), "it has all that it says"


def test_nodes_of_two_rdma_networks_have_different_domains() -> None:
    other = _OCID.replace("abcdefghijkl", "xbcdefghijkl")
    assert labels.rdma_domain(_OCID) != labels.rdma_domain(other)
    assert labels.rdma_domain("ocid1.computecluster.oc1.iad." + "z" * 90) == "z" * 63


def test_only_nodes_with_gpus_are_tainted_and_each_maker_has_its_own() -> None:
    assert labels.node_taints(shapes.get("BM.GPU.H100.8")) == [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    ]
    assert labels.node_taints(shapes.get("BM.GPU.MI300X.8"))[0]["key"] == "amd.com/gpu"
    assert labels.node_taints(shapes.get("BM.HPC.E5.144")) == []
    tolerated = {each["key"] for each in labels.gpu_tolerations()}
    assert {taint["key"] for shape in ALL for taint in labels.node_taints(shape)} == tolerated


def test_what_a_node_offers_without_having_it() -> None:
    offered = labels.offered_devices
    assert offered(shapes.get("BM.GPU4.8"), virtual_functions=False) == {"nvidia.com/gpu": "8"}
    both = {"nvidia.com/gpu": "8", "nvidia.com/rdma-vf": "8"}
    assert offered(shapes.get("BM.GPU.H200.8"), virtual_functions=True) == both
    assert offered(shapes.get("BM.GPU.MI355X.8"), virtual_functions=False) == {"amd.com/gpu": "8"}
    assert offered(shapes.get("VM.Standard.E5.Flex"), virtual_functions=True) == {}


def test_a_node_with_divided_gpus_shows_and_offers_what_pods_can_ask_for() -> None:
    """Names of resources: NVIDIA's plugin with the strategy `mixed`. Of labels: the same ends, of our domain."""
    parts = ("3g.40gb:4,1g.10gb:0,1g.10gb+me:1", "1g.10gb:0,1g.10gb:1", "", "")
    shape = shapes.get("BM.GPU.H100.8")
    offered = labels.offered_devices(shape, virtual_functions=False, mig_parts=parts)
    assert offered == {
        "nvidia.com/gpu": "2",
        "nvidia.com/mig-1g.10gb": "3",
        "nvidia.com/mig-1g.10gb.me": "1",
        "nvidia.com/mig-3g.40gb": "1",
    }
    own = _of("BM.GPU.H100.8", mig_parts=parts)
    assert {name: value for name, value in own.items() if "mig" in name} == {
        name.replace("nvidia.com", "gpucluster.io"): number for name, number in offered.items() if "mig" in name
    }
    assert all(_NAME.fullmatch(name.partition("/")[2]) for name in own)
    whole = labels.offered_devices(shape, virtual_functions=False, mig_parts=("1g.10gb:0",) * 8)
    assert whole == {"nvidia.com/mig-1g.10gb": "8"}
    assert labels.node_taints(shape)[0]["key"] == "nvidia.com/gpu", "the taint is that of all nodes with GPUs"
