"""Where hosts with RDMA are in their network: what a test writes is what the metadata service reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models
from oci.exceptions import ServiceError

from gpucluster.localcloud.compute import placement
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.metadata.documents import host_document
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.node_agent.rules.rdma_place import Place, leaf_switch, place
from tests.localcloud.api_harness import GPU_SHAPE, Api, running

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path) as api:
        yield api


def places(api: Api, *entries: dict[str, Any]) -> None:
    (api.home / placement.FILE).write_text(json.dumps(entries))


def documents(api: Api, *ids: str) -> list[dict[str, Any]]:
    """What the metadata service reports to these instances."""
    cloud = open_cloud(api.home, NullEngine(api.home / "null"), open_authority(api.home))
    found = [cloud.store.get("instance", each) for each in ids]
    return [host_document(row) for row in found if row is not None]


def test_members_of_a_cluster_network_get_the_places_of_the_file(api: Api) -> None:
    places(
        api,
        {"island": "i", "network_block": "n", "local_block": "a", "hosts": 1},
        {"shape": "BM.Other*", "island": "i", "network_block": "n", "local_block": "never"},
        {"network_block": "n", "rack": "r", "hosts": 1},
        {},
    )
    subnet = api.subnet(api.vcn(), prohibit_public_ip_on_vnic=True)
    network = api.cluster_network(api.configuration(), subnet, 3)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    found = documents(api, *(member.id for member in api.members(network.id)))
    assert Counter(tuple(sorted(each)) for each in found) == Counter(
        [("id", "rdmaTopologyData"), ("id", "networkBlockId", "rackId"), ("id",)]
    )
    (data,) = [each["rdmaTopologyData"] for each in found if "rdmaTopologyData" in each]
    kinds = {key: value.split(".")[1] for key, value in data.items()}
    assert kinds == {
        "customerHPCIslandId": "hpcisland",
        "customerHostId": "computebaremetalhost",
        "customerLocalBlock": "computelocalblock",
        "customerNetworkBlock": "computenetworkblock",
    }
    # The form of the two differs, as on OCI, and both are read.
    assert sorted(where is not None for where in map(place, found)) == [False, True, True]


def test_a_compute_cluster_has_places_and_other_instances_have_none(api: Api) -> None:
    places(api, {"island": "i", "network_block": "n", "local_block": "a", "memory_fabric": "f"})
    subnet = api.subnet(api.vcn(), "10.77.0.0/24")
    cluster = api.compute.create_compute_cluster(
        models.CreateComputeClusterDetails(availability_domain=api.domain, compartment_id=api.tenancy)
    ).data
    gpu: dict[str, Any] = {"shape": GPU_SHAPE, "shape_config": None}
    inside = api.launch(subnet, "inside", compute_cluster_id=cluster.id, **gpu)
    outside = api.launch(subnet, "outside", **gpu)
    first, second = documents(api, inside.id, outside.id)
    assert place(second) is None
    assert first["rdmaTopologyData"]["customerGpuMemoryFabric"].startswith("ocid1.computegpumemoryfabric.")
    where = place(first)
    assert where is not None
    assert leaf_switch("gpu", where) == leaf_switch("gpu", Place("", "", placement.document(
        {"network_block": "n", "local_block": "a"}, "x")["rdmaTopologyData"]["customerLocalBlock"]))  # fmt: skip


def test_a_file_that_is_wrong_fails_the_launch(api: Api) -> None:
    places(api, {"localblock": "a"})
    subnet = api.subnet(api.vcn(), "10.77.0.0/24")
    cluster = api.compute.create_compute_cluster(
        models.CreateComputeClusterDetails(availability_domain=api.domain, compartment_id=api.tenancy)
    ).data
    with pytest.raises(ServiceError, match="is not a list of places"):
        api.launch(subnet, "inside", compute_cluster_id=cluster.id, shape=GPU_SHAPE, shape_config=None)
