"""What the metadata service reports of a host's place, and the names of Slurm's switches for it."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent.rules.rdma_place import Place, leaf_switch, network_switch, path, place

#: The members and kinds are those of oci-hpc-oke's page "Using RDMA Network Locality"; the ends are its labels.
_DOCUMENT: dict[str, Any] = {
    "id": "ab12",
    "rdmaTopologyData": {
        "customerHPCIslandId": "ocid1.hpcisland.oc1.iad.anuwcljrg5pyaeycajoqlssaf7ubvouuyq",
        "customerHostId": "ocid1.computebaremetalhost.oc1.iad.anuwcljrg5pyaeycuab3zs7y7v7q",
        "customerLocalBlock": "ocid1.computelocalblock.oc1.iad.anuwcljrg5pyaeyc4tjxbt4s6ua",
        "customerNetworkBlock": "ocid1.computenetworkblock.oc1.iad.anuwclddsdef7xmzl4p4wba",
    },
}


def test_the_place_of_a_host_of_dedicated_capacity() -> None:
    where = place(_DOCUMENT)
    assert where is not None
    assert network_switch("gpu", where) == "rdma-gpu_nb-7xmzl4p4wba"
    assert leaf_switch("gpu", where) == "rdma-gpu_lb-4tjxbt4s6ua"
    assert path("gpu", where) == "default:rdma-gpu:rdma-gpu_nb-7xmzl4p4wba:rdma-gpu_lb-4tjxbt4s6ua"
    assert path("gpu", None) == "default:rdma-gpu:rdma-gpu_unplaced"


def test_a_host_without_capacity_topology_has_the_place_that_oracle_reads_of_it() -> None:
    assert place({"networkBlockId": "net1", "rackId": "rack1", "id": "x"}) == Place("", "net1", "rack1")


def test_the_nvlink_domain_is_part_of_it() -> None:
    data = {**_DOCUMENT["rdmaTopologyData"], "customerGpuMemoryFabric": "fabric"}
    where = place({"rdmaTopologyData": data})
    assert where is not None
    assert where.memory_fabric == "fabric"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"id": "x"},
        {"rdmaTopologyData": None},
        {"rdmaTopologyData": {}},
        {"rdmaTopologyData": "text"},
        {"rdmaTopologyData": {"customerNetworkBlock": "n"}},
        {"rdmaTopologyData": {"customerNetworkBlock": "n", "customerLocalBlock": "None"}},
        {"rdmaTopologyData": {"customerNetworkBlock": 7, "customerLocalBlock": "l"}},
        {"networkBlockId": "n"},
        {"networkBlockId": "n", "rackId": ""},
        {"networkBlockId": "null", "rackId": "r"},
    ],
)
def test_a_host_that_reports_too_little_has_no_place(document: dict[str, Any]) -> None:
    assert place(document) is None


def test_names_have_nothing_that_means_something_in_a_list_of_slurm() -> None:
    where = Place("", "a:b,c[1-2] D", "x\n/y")
    assert path("gpu", where) == "default:rdma-gpu:rdma-gpu_nb-abc12d:rdma-gpu_lb-xy"
