"""A rack as the operator's machine handles it, with the real SDK: members get names, are removed by name, come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.cluster_network import ClusterNetwork
from gpucluster.cloud.gpu_memory_cluster import GpuMemoryCluster, launched_together
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.errors import CloudError
from gpucluster.events import Event, ignore
from tests.localcloud.api_harness import Api, running
from tests.localcloud.memory_racks import SHAPE, compute_cluster, configured, create, delete, ended, racks, resize
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("rack"))) as api:
        yield api


@pytest.fixture(scope="module")
def configuration(api: Api) -> Any:
    return configured(api)


@pytest.fixture
def made(api: Api, configuration: Any) -> Iterator[Any]:
    (rack,) = racks(api, {"name": "rack"})
    made = create(api, rack, compute_cluster(api), configuration, 2, freeform_tags={"gpucluster": "demo"})
    yield made
    api.faults()
    if api.compute.get_compute_gpu_memory_cluster(made.id).data.lifecycle_state == "ACTIVE":
        delete(api, made)


def access(api: Api) -> CloudAccess:
    return CloudAccess(api.config, api.endpoint, api.tenancy)


def cluster(api: Api, made: Any, events: list[Event] | None = None) -> GpuMemoryCluster:
    found = launched_together(access(api), made.id, ignore if events is None else events.append)
    assert isinstance(found, GpuMemoryCluster)
    return found


def names(api: Api, made: Any, *wanted: str) -> dict[str, str]:
    members = PoolMembers(access(api), ignore).members("gpu", made.id, wanted, PATIENCE_S)
    assert [member.name for member in members] == list(wanted)
    assert all(member.private_ip for member in members)
    return {member.name: member.id for member in members}


def test_the_ocid_decides_what_it_is(api: Api) -> None:
    other = launched_together(access(api), "ocid1.clusternetwork.oc1.iad.a", ignore)
    assert type(other) is ClusterNetwork


def test_members_get_names_and_keep_them(api: Api, made: Any) -> None:
    first = names(api, made, "gpu-1", "gpu-2")
    ended(api, resize(api, made, 3))
    assert names(api, made, "gpu-1", "gpu-2", "gpu-3").items() > first.items()
    present = PoolMembers(access(api), ignore).present("gpu", made.id, ["gpu-1", "gpu-2", "gpu-3"])
    assert {member.id for member in present} > set(first.values())


def test_the_named_member_leaves_and_its_name_is_free_again(api: Api, made: Any) -> None:
    events: list[Event] = []
    rack = cluster(api, made, events)
    first = names(api, made, "gpu-1", "gpu-2")
    rack.remove({first["gpu-1"]: "gpu-1"}, 1)
    status = rack.status()
    assert (status.state, status.size, dict(status.members)) == ("RUNNING", 1, {first["gpu-2"]: "gpu-2"})
    assert [event.status for event in events] == ["deleting", "deleted"]
    rack.remove({first["gpu-1"]: "gpu-1"}, 1)  # again, as after a kill: it is gone already
    rack.refill(2)
    again = names(api, made, "gpu-1", "gpu-2")
    assert again["gpu-2"] == first["gpu-2"]
    assert again["gpu-1"] != first["gpu-1"]


def test_the_reason_of_a_missing_member_is_that_of_the_cloud(api: Api, made: Any) -> None:
    api.faults({"operation": "BootInstance", "shape": SHAPE, "message": "The host is broken."})
    ended(api, resize(api, made, 3), "FAILED")
    failure = cluster(api, made).failure()
    assert failure is not None
    assert "The host is broken" in failure.reason
    with pytest.raises(CloudError, match=r"only 2 of 3 members run, and OCI launches no more: .*The host is broken"):
        names(api, made, "gpu-1", "gpu-2", "gpu-3")


def test_a_cluster_that_is_gone_is_not_present(api: Api, made: Any) -> None:
    delete(api, made)
    assert cluster(api, made).present() is None
    with pytest.raises(CloudError, match="the GPU memory cluster is gone"):
        names(api, made, "gpu-1")


def test_it_is_found_by_its_tag_and_removed_with_its_members(api: Api, made: Any) -> None:
    tagged = TaggedResources(access(api), "demo", on_event=ignore)
    found = [each for each in tagged.find() if each.kind == "compute_gpu_memory_cluster"]
    assert [each.id for each in found] == [made.id]
    tagged.remove(found)
    assert cluster(api, made).present() is None
