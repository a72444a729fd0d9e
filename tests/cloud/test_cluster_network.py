"""Members of a cluster network are added and removed by name, with the real SDK. Each node is a process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud import members as instances
from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.cluster_network import ClusterNetwork
from gpucluster.cloud.members import PoolMember, PoolMembers
from gpucluster.errors import CloudError
from gpucluster.events import Event
from gpucluster.localcloud.state.faults import OUT_OF_CAPACITY
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

NO_CAPACITY = {"operation": "BootInstance", "status": 500, "code": "InternalError", "message": OUT_OF_CAPACITY}


class Pool:
    """A cluster network, and what the operator's machine does with it."""

    def __init__(self, api: Api, subnet: Any, size: int) -> None:
        self.api = api
        self.id = api.cluster_network(api.configuration(), subnet, size).id
        self.events: list[Event] = []
        access = CloudAccess(api.config, api.endpoint, api.tenancy)
        self.network = ClusterNetwork(access, self.id, self.events.append)
        self._instances = PoolMembers(access, self.events.append)

    def members(self, *numbers: int) -> dict[str, PoolMember]:
        names = [f"compute-{number}" for number in numbers]
        found = self._instances.members("compute", self.id, names, PATIENCE_S)
        assert [member.name for member in found] == names
        return {member.name: member for member in found}

    def terraform_sets_size(self, size: int) -> None:
        """What the provider sends when `count` has changed; it does not wait."""
        pool = oci.core.models.UpdateClusterNetworkInstancePoolDetails(id=self.network.status().pool_id, size=size)
        details = oci.core.models.UpdateClusterNetworkDetails(instance_pools=[pool])
        self.api.management.update_cluster_network(self.id, details)

    def display_names(self) -> list[str]:
        return sorted(one.display_name for one in self.api.members(self.id))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    home = Path(tmp_path_factory.mktemp("scaling"))
    (home / "process-engine.json").write_text(json.dumps({"argv": ["sleep", "600"]}))
    with running(home, "process") as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn("10.97.0.0/16"), "10.97.1.0/24", prohibit_public_ip_on_vnic=True)


@pytest.fixture
def pool(api: Api, subnet: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr("gpucluster.cloud.cluster_network._POLL", 0.1)
    monkeypatch.setattr(instances, "_POLL", 0.1)
    monkeypatch.setattr(instances, "_SETTLED", 0.5)
    made = Pool(api, subnet, 3)
    yield made
    api.faults()
    if made.network.present():
        api.management.terminate_cluster_network(made.id)


def test_the_named_member_goes_and_the_others_stay_as_they_are(pool: Pool) -> None:
    before = pool.members(1, 2, 3)
    pool.network.remove({before["compute-1"].id: "compute-1"}, 2)
    look = pool.network.status()
    assert (look.state, look.size) == ("RUNNING", 2)
    assert dict(look.members) == {before[name].id: name for name in ("compute-2", "compute-3")}
    assert pool.members(2, 3) == {name: before[name] for name in ("compute-2", "compute-3")}
    gone = pool.api.compute.get_instance(before["compute-1"].id).data
    assert gone.lifecycle_state == "TERMINATED"
    # A repeated run, after one that was killed in between.
    pool.network.remove({before["compute-1"].id: "compute-1"}, 2)
    assert pool.network.status() == look

    pool.terraform_sets_size(4)
    after = pool.members(2, 3, 4, 5)
    assert {name: after[name] for name in ("compute-2", "compute-3")} == {
        name: before[name] for name in ("compute-2", "compute-3")
    }


def test_a_member_is_replaced_where_the_count_stays(pool: Pool) -> None:
    before = pool.members(1, 2, 3)
    pool.network.remove({before["compute-2"].id: "compute-2"}, 3)
    assert pool.network.status().size == 3
    after = pool.members(1, 3, 4)
    assert after["compute-4"].id not in {member.id for member in before.values()}
    assert after["compute-1"] == before["compute-1"]


def test_a_member_that_was_deleted_by_hand_is_filled_up_and_takes_the_free_name(pool: Pool) -> None:
    before = pool.members(1, 2, 3)
    pool.api.compute.terminate_instance(before["compute-2"].id)
    pool.api.wait(pool.api.compute.get_instance, before["compute-2"].id, "TERMINATED")
    after = pool.members(1, 2, 3)
    assert after["compute-2"].id != before["compute-2"].id
    assert {**after, "compute-2": None} == {**before, "compute-2": None}


def test_out_of_capacity_late_is_told_by_the_work_request_and_asked_for_again(pool: Pool) -> None:
    pool.members(1, 2, 3)
    pool.api.faults({**NO_CAPACITY, "times": 1})
    pool.terraform_sets_size(4)
    with pytest.raises(CloudError) as caught:
        pool.members(1, 2, 3, 4)
    words = str(caught.value)
    # At the end of the time it would report: only 3 of 4 members run after so many seconds.
    assert "only 3 of 4 members run, and OCI launches no more" in words
    assert "Out of host capacity" in words
    assert pool.id in words
    request = words.partition("work request ")[2].partition(")")[0]
    assert pool.api.work.get_work_request(request).data.status == "FAILED"
    assert "Run: gpucluster apply" in words

    look = pool.network.status()
    assert (look.state, look.size, len(look.members)) == ("RUNNING", 4, 3)
    pool.network.refill(4)
    assert len(pool.members(1, 2, 3, 4)) == 4
    assert pool.network.failure() is None


def test_members_that_the_spec_does_not_have_are_reported_and_left_alone(pool: Pool) -> None:
    pool.members(1, 2, 3)
    with pytest.raises(CloudError, match=r"that are not in cluster\.yml: compute-1"):
        pool.members(2, 3)
    assert pool.display_names() == ["compute-1", "compute-2", "compute-3"]


def test_a_network_that_is_gone_is_absent(pool: Pool) -> None:
    pool.members(1, 2, 3)
    pool.api.management.terminate_cluster_network(pool.id)
    pool.api.wait(pool.api.management.get_cluster_network, pool.id, "TERMINATED")
    assert pool.network.present() is None
    with pytest.raises(CloudError, match="the cluster network is gone"):
        pool.members(1, 2, 3)


def test_a_detach_whose_answer_is_lost_is_done_once(pool: Pool) -> None:
    before = pool.members(1, 2, 3)
    pool.api.faults({"operation": "DetachInstancePoolInstance", "lost_response": True, "times": 1})
    pool.network.remove({before["compute-3"].id: "compute-3"}, 2)
    look = pool.network.status()
    assert (look.size, sorted(look.members.values())) == (2, ["compute-1", "compute-2"])


@pytest.mark.parametrize("kept", ["compute-1", "compute-3"])
def test_several_go_at_once_and_the_last_one_may_be_any(pool: Pool, kept: str) -> None:
    before = pool.members(1, 2, 3)
    going: dict[str, Any] = {member.id: name for name, member in before.items() if name != kept}
    pool.network.remove(going, 1)
    look = pool.network.status()
    assert (look.size, dict(look.members)) == (1, {before[kept].id: kept})
