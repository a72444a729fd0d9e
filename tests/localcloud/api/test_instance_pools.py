"""Instance configurations, pools and cluster networks, with the real SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import SHAPE, Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("pools"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn(), prohibit_public_ip_on_vnic=True)


@pytest.fixture(scope="module")
def configuration(api: Api) -> Any:
    return api.configuration()


def resize(api: Api, network: Any, size: int) -> Any:
    pool = models.UpdateClusterNetworkInstancePoolDetails(id=network.instance_pools[0].id, size=size)
    return api.management.update_cluster_network(
        network.id, models.UpdateClusterNetworkDetails(instance_pools=[pool])
    ).data


def test_a_cluster_network_grows_shrinks_and_ends(api: Api, subnet: Any, configuration: Any) -> None:
    network = api.cluster_network(configuration, subnet, 2)
    assert network.lifecycle_state == "PROVISIONING"
    network = api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    members = api.members(network.id)
    assert [one.state for one in members] == ["Running", "Running"]
    assert all(one.display_name.startswith("inst-") and one.display_name.endswith("-compute") for one in members)
    first_ids = {one.id for one in members}

    pool = api.management.get_instance_pool(network.instance_pools[0].id).data
    assert (pool.size, pool.current_size) == (2, 2)
    assert pool.placement_configurations[0].primary_subnet_id == subnet.id
    assert len(api.management.list_instance_pool_instances(api.tenancy, pool.id).data) == 2
    with refused(409, "Conflict"):
        api.management.terminate_instance_pool(pool.id)
    with refused(409, "Conflict"):
        api.management.delete_instance_configuration(configuration.id)

    assert resize(api, network, 3).lifecycle_state == "SCALING"
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert first_ids < {one.id for one in api.members(network.id)}
    resize(api, network, 1)
    network = api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert len(api.members(network.id)) == 1
    assert network.instance_pools[0].current_size == 1

    left = api.members(network.id)[0]
    assert api.management.terminate_cluster_network(network.id).status == 204
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    assert api.compute.get_instance(left.id).data.lifecycle_state == "TERMINATED"
    assert network.id in [one.id for one in api.management.list_cluster_networks(api.tenancy).data]


def test_what_a_cluster_network_refuses(api: Api, subnet: Any, configuration: Any) -> None:
    flexible = api.configuration(shape=SHAPE)
    with refused(400, "InvalidParameter") as said:
        api.cluster_network(flexible, subnet, 1)
    assert "RDMA" in said[0]
    with refused(400, "InvalidParameter"):
        api.cluster_network(configuration, subnet, -1)
    api.management.delete_instance_configuration(flexible.id)
    with refused(404, "NotAuthorizedOrNotFound"):
        api.management.get_instance_configuration(flexible.id)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.cluster_network(flexible, subnet, 1)


def test_a_fault_on_purpose_is_answered_as_often_as_asked(api: Api, subnet: Any) -> None:
    fault = {"operation": "LaunchInstance", "status": 500, "code": "InternalError",
             "message": "Out of host capacity.", "times": 2}  # fmt: skip
    (api.home / "faults.json").write_text(json.dumps([fault]))
    for _ in range(2):
        with refused(500, "InternalError") as said:
            api.launch(subnet, "late")
        assert said == ["Out of host capacity."]
    api.launch(subnet, "late")
    (api.home / "faults.json").unlink()
