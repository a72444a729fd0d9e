"""Node pools of Kubernetes Engine with the real SDK: nodes, labels, cycling, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.container_engine import models

from tests.localcloud.api.test_container_engine import NEWEST, OLDEST, cluster, finished
from tests.localcloud.api_harness import Api, refused, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("oke")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn("10.90.0.0/16", "oke"), "10.90.0.0/24", prohibit_public_ip_on_vnic=True)


def pool_details(api: Api, cluster_id: str, subnet: Any, size: int = 2, **changes: Any) -> Any:
    placement = models.NodePoolPlacementConfigDetails(availability_domain=api.domain, subnet_id=subnet.id)
    config = models.CreateNodePoolNodeConfigDetails(size=size, placement_configs=[placement])
    return models.CreateNodePoolDetails(**{
        "compartment_id": api.tenancy, "cluster_id": cluster_id, "name": "work", "kubernetes_version": OLDEST,
        "node_shape": "VM.Standard.E5.Flex",
        "node_shape_config": models.CreateNodeShapeConfigDetails(ocpus=1, memory_in_gbs=4),
        "node_source_details": models.NodeSourceViaImageDetails(image_id=api.image().id),
        "node_config_details": config, **changes,
    })  # fmt: skip


def nodes_of(api: Api, pool: str) -> list[Any]:
    return [node for node in api.kubernetes.get_node_pool(pool).data.nodes if node.lifecycle_state == "ACTIVE"]


@pytest.mark.parametrize(("name", "value"), [("a", "b,c=d"), ("a", "b --v=9"), ("a=b", "c"), ("a\nb", "c"), ("", "c")])
def test_a_label_that_kubelet_would_refuse_is_refused(api: Api, subnet: Any, name: str, value: str) -> None:
    made = cluster(api, subnet)
    label = models.KeyValue(key=name, value=value)
    with refused(400, "InvalidParameter") as said:
        api.kubernetes.create_node_pool(pool_details(api, made.id, subnet, initial_node_labels=[label]))
    assert "initialNodeLabels" in said[0]


def test_a_node_pool_has_instances_grows_shrinks_and_leaves_none(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet)
    work = finished(api, api.kubernetes.create_node_pool(pool_details(api, made.id, subnet)).headers[
        "opc-work-request-id"])  # fmt: skip
    assert (work.operation_type, work.resources[0].entity_type) == ("NODEPOOL_CREATE", "nodepool")
    pool = work.resources[0].identifier
    names = [node.name for node in nodes_of(api, pool)]
    assert names == [f"oke-c{made.id[-11:]}-n{pool[-11:]}-s{subnet.id[-11:]}-{number}" for number in (0, 1)]
    assert {api.compute.get_instance(node.id).data.display_name for node in nodes_of(api, pool)} == set(names)
    config = models.UpdateNodePoolNodeConfigDetails(size=3)
    reply = api.kubernetes.update_node_pool(pool, models.UpdateNodePoolDetails(node_config_details=config))
    assert finished(api, reply.headers["opc-work-request-id"]).operation_type == "NODEPOOL_UPDATE"
    assert len(nodes_of(api, pool)) == 3
    with refused(409, "Conflict"):
        api.kubernetes.delete_cluster(made.id)
    gone = nodes_of(api, pool)[1].id
    finished(api, api.kubernetes.delete_node(pool, gone).headers["opc-work-request-id"])
    assert len(nodes_of(api, pool)) == 2
    assert api.compute.get_instance(gone).data.lifecycle_state == "TERMINATED"
    finished(api, api.kubernetes.delete_node_pool(pool).headers["opc-work-request-id"])
    assert api.kubernetes.get_node_pool(pool).data.lifecycle_state == "DELETED"
    alive = [row for row in api.compute.list_instances(api.tenancy).data if row.lifecycle_state != "TERMINATED"]
    assert alive == []


def test_with_cycling_a_change_replaces_the_nodes_and_else_it_is_for_new_ones(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet)
    work = finished(api, api.kubernetes.create_node_pool(pool_details(api, made.id, subnet)).headers[
        "opc-work-request-id"])  # fmt: skip
    pool = work.resources[0].identifier
    before = {node.id for node in nodes_of(api, pool)}
    labels = [models.KeyValue(key="a", value="b")]
    reply = api.kubernetes.update_node_pool(pool, models.UpdateNodePoolDetails(initial_node_labels=labels))
    finished(api, reply.headers["opc-work-request-id"])
    assert {node.id for node in nodes_of(api, pool)} == before
    cycling = models.NodePoolCyclingDetails(is_node_cycling_enabled=True, maximum_unavailable="1", maximum_surge="0")
    reply = api.kubernetes.update_node_pool(pool, models.UpdateNodePoolDetails(node_pool_cycling_details=cycling))
    finished(api, reply.headers["opc-work-request-id"])
    after = {node.id for node in nodes_of(api, pool)}
    assert (len(after), after & before) == (2, set())
    metadata = api.compute.get_instance(after.pop()).data.metadata
    assert metadata["oke-initial-node-labels"] == "a=b"
    finished(api, api.kubernetes.delete_node_pool(pool).headers["opc-work-request-id"])


def test_nodes_are_not_newer_than_their_control_plane(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet)
    for version in (NEWEST, "1"):
        with refused(400, "InvalidParameter"):
            api.kubernetes.create_node_pool(pool_details(api, made.id, subnet, kubernetes_version=version))
