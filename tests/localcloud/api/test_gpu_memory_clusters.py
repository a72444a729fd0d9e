"""GPU memory fabrics, their hosts and the clusters on them, with the real SDK."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from gpucluster.localcloud.compute import memory_fabrics
from gpucluster.localcloud.compute.memory_fabrics import FILE
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.metadata.documents import host_document
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.node_agent.rules.rdma_place import place
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.memory_racks import (
    HOSTS,
    SHAPE,
    compute_cluster,
    configured,
    create,
    delete,
    details,
    ended,
    fabric,
    instances,
    racks,
    resize,
)

OTHER = "BM.GPU.GB300.4"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("fabrics"))) as api:
        yield api


@pytest.fixture(scope="module")
def configuration(api: Api) -> Any:
    return configured(api)


@pytest.fixture
def cluster(api: Api) -> Any:
    return compute_cluster(api)


# --- the life of a cluster -----


def test_a_cluster_is_made_grows_shrinks_and_ends(api: Api, cluster: Any, configuration: Any) -> None:
    (rack,) = racks(api, {"name": "rack-1"})
    assert (fabric(api, rack).lifecycle_state, fabric(api, rack).available_host_count) == ("AVAILABLE", HOSTS)
    made = create(api, rack, cluster, configuration, 2)
    assert (made.size, made.gpu_memory_fabric_id, made.compute_cluster_id) == (2, rack, cluster.id)
    members = instances(api, made)
    assert [one.lifecycle_state for one in members] == ["RUNNING", "RUNNING"]
    assert {one.instance_shape for one in members} == {SHAPE}
    whole = fabric(api, rack)
    assert (whole.lifecycle_state, whole.available_host_count) == ("OCCUPIED", HOSTS - 2)
    assert whole.compute_gpu_memory_clusters == [made.id]

    change = resize(api, made, HOSTS)
    assert change.data.lifecycle_state == "UPDATING"
    request = ended(api, change)
    assert [(one.entity_type, one.action_type) for one in request.resources] == [
        (memory_fabrics.MEMORY_CLUSTER, "UPDATED")
    ]
    assert {one.id for one in members} < {one.id for one in instances(api, made)}
    ended(api, resize(api, made, 1))
    assert len(instances(api, made)) == 1
    assert "opc-work-request-id" not in resize(api, made, 1).headers

    (left,) = instances(api, made)
    with refused(409, "Conflict"):
        api.compute.delete_compute_cluster(cluster.id)
    with refused(409, "Conflict"):
        api.management.delete_instance_configuration(configuration.id)
    delete(api, made)
    assert api.compute.get_instance(left.id).data.lifecycle_state == "TERMINATED"
    assert fabric(api, rack).lifecycle_state == "AVAILABLE"
    listed = api.compute.list_compute_gpu_memory_clusters(api.tenancy, compute_cluster_id=cluster.id).data.items
    assert [(one.id, one.lifecycle_state) for one in listed] == [(made.id, "DELETED")]
    api.compute.delete_compute_cluster(cluster.id)


def test_hosts_show_their_instances_and_these_their_places(api: Api, cluster: Any, configuration: Any) -> None:
    (rack, _) = racks(api, {"name": "rack-2", "unhealthy": [1], "island": "i"}, {"name": "rack-3", "island": "i"})
    made = create(api, rack, cluster, configuration, 1)
    (member,) = instances(api, made)
    hosts = api.compute.list_compute_hosts(api.tenancy, network_resource_id=rack).data.items
    assert Counter(host.lifecycle_state for host in hosts) == {"REPAIR": 1, "OCCUPIED": 1, "AVAILABLE": 1}
    (used,) = [host for host in hosts if host.instance_id]
    assert (used.instance_id, used.shape, used.gpu_memory_fabric_id) == (member.id, SHAPE, rack)
    assert api.compute.get_compute_host(used.id).data.fault_domain == member.fault_domain
    repaired = api.compute.list_compute_hosts(api.tenancy, compute_host_health="UNHEALTHY").data.items
    assert [host.lifecycle_state for host in repaired] == ["REPAIR"]
    island = fabric(api, rack).compute_hpc_island_id
    assert len(api.compute.list_compute_hosts(api.tenancy, network_resource_id=island).data.items) == 2 * HOSTS
    cloud = open_cloud(api.home, NullEngine(api.home / "null"), open_authority(api.home))
    row = cloud.store.get("instance", member.id)
    assert row is not None
    where = place(host_document(row))
    assert where is not None
    assert where.memory_fabric in rack
    assert host_document(row)["rdmaTopologyData"]["customerHostId"] == used.id
    delete(api, made)


def test_lists_find_by_what_they_are_asked_for(api: Api) -> None:
    good, bad = racks(api, {"name": "a"}, {"name": "b", "health": "UNHEALTHY", "state": "DEGRADED"})

    def found(compartment: str = api.tenancy, **query: str) -> list[str]:
        return [one.id for one in api.compute.list_compute_gpu_memory_fabrics(compartment, **query).data.items]

    assert set(found()) == {good, bad}
    assert found(compute_gpu_memory_fabric_health="UNHEALTHY") == [bad]
    assert found(compute_gpu_memory_fabric_lifecycle_state="AVAILABLE") == [good]
    assert found(compute_gpu_memory_fabric_id=bad, display_name="b") == [bad]
    other = next(one.name for one in api.identity.list_availability_domains(api.tenancy).data if one.name != api.domain)
    assert found(availability_domain=other) == []
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.get_compute_gpu_memory_fabric(good[:-1])


def test_an_instance_that_is_terminated_leaves_its_cluster(api: Api, cluster: Any, configuration: Any) -> None:
    (rack,) = racks(api, {"name": "rack-4"})
    made = create(api, rack, cluster, configuration, 2)
    first = instances(api, made)[0]
    api.compute.terminate_instance(first.id)
    api.wait(api.compute.get_instance, first.id, "TERMINATED")
    smaller = api.compute.get_compute_gpu_memory_cluster(made.id).data
    assert (smaller.size, smaller.lifecycle_state) == (1, "ACTIVE")
    ended(api, resize(api, made, 2))
    assert first.id not in {one.id for one in instances(api, made)}
    delete(api, made)


# --- what is refused -----


def test_what_a_create_refuses(api: Api, cluster: Any, configuration: Any) -> None:
    rack, wrong, broken = racks(
        api,
        {"name": "rack-5", "unhealthy": [3]},
        {"name": "rack-6", "shape": OTHER},
        {"name": "rack-7", "state": "DEGRADED"},
    )

    def refuses(status: int, code: str, *arguments: Any, **more: Any) -> str:
        with refused(status, code) as said:
            api.compute.create_compute_gpu_memory_cluster(details(api, *arguments, **more))
        return said[0]

    assert "another" not in refuses(409, "Conflict", rack, cluster, configuration, HOSTS)
    assert "1 to 3" in refuses(400, "InvalidParameter", rack, cluster, configuration, HOSTS + 1)
    assert OTHER in refuses(400, "InvalidParameter", wrong, cluster, configuration, 1)
    assert "DEGRADED" in refuses(409, "IncorrectState", broken, cluster, configuration, 1)
    refuses(400, "RelatedResourceNotAuthorizedOrNotFound", rack[:-1], cluster, configuration, 1)
    refuses(400, "InvalidParameter", rack, cluster, configuration, 1, private_ip_ids=["ocid1.privateip.oc1..a"])
    made = create(api, rack, cluster, configuration, 1)
    assert "same compute cluster" in refuses(409, "Conflict", rack, cluster, configuration, 1)
    second = create(api, rack, compute_cluster(api), configuration, 1)
    with refused(409, "Conflict"):
        resize(api, made, 2)
    delete(api, second)
    delete(api, made)


def test_without_dedicated_capacity_there_is_no_fabric_and_no_launch(api: Api, configuration: Any) -> None:
    (api.home / FILE).unlink(missing_ok=True)
    assert api.compute.list_compute_gpu_memory_fabrics(api.tenancy).data.items == []
    assert api.compute.list_compute_hosts(api.tenancy).data.items == []
    with refused(400, "InvalidParameter") as said:
        api.management.launch_instance_configuration(configuration.id, models.ComputeInstanceDetails())
    assert "GPU memory cluster" in said[0]


def test_a_wrong_file_is_an_error_and_not_an_empty_list(api: Api) -> None:
    for wrong in ('[{"name": "a"}]', '[{"name": "a", "shape": "BM.GPU4.8"}]', "{", '[{"name": "a", "rack": 1}]'):
        (api.home / FILE).write_text(wrong)
        with refused(500, "InternalError") as said:
            api.compute.list_compute_gpu_memory_fabrics(api.tenancy)
        assert FILE in said[0]
    (api.home / FILE).unlink()
