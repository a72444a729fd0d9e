"""How a pool comes to its size: replaced members, failed launches, names, and who ends first."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.localcloud import control
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.compute.pools import converge, members, next_to_terminate
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import LaunchRequest
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Resource
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for


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


def test_a_member_that_is_terminated_is_replaced(api: Api, subnet: Any, configuration: Any) -> None:
    network = api.cluster_network(configuration, subnet, 1)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    lost = api.members(network.id)[0]
    api.compute.terminate_instance(lost.id)
    api.wait(api.compute.get_instance, lost.id, "TERMINATED")
    # A pool that lacks a member is not RUNNING at any moment.
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    (member,) = api.members(network.id)
    assert member.id != lost.id
    api.management.terminate_cluster_network(network.id)
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")


def test_a_first_launch_that_fails_ends_the_cluster_network(api: Api, configuration: Any, subnet: Any) -> None:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    tiny = api.subnet(
        vcn, "10.77.9.0/30", dns_label="tiny", prohibit_public_ip_on_vnic=True
    )  # addresses for one instance
    details = api.cluster_network(configuration, tiny, 2)
    ended = api.wait(api.management.get_cluster_network, details.id, "TERMINATED")
    requests = oci.pagination.list_call_get_all_results(api.work.list_work_requests, api.tenancy, resource_id=ended.id)
    request = next(one for one in requests.data if one.status == "FAILED")
    errors = api.work.list_work_request_errors(request.id).data
    assert "no free private IP" in errors[0].message
    assert api.network.list_private_ips(subnet_id=tiny.id).data == []
    api.network.delete_subnet(tiny.id)


def test_names_follow_a_formatter_and_are_never_used_again(api: Api, subnet: Any, configuration: Any) -> None:
    placement = models.CreateInstancePoolPlacementConfigurationDetails(
        availability_domain=api.domain, primary_subnet_id=subnet.id
    )
    pool = api.management.create_instance_pool(
        models.CreateInstancePoolDetails(
            compartment_id=api.tenancy,
            instance_configuration_id=configuration.id,
            placement_configurations=[placement],
            size=2,
            instance_display_name_formatter="gpu-${launchCount}",
            instance_hostname_formatter="gpu-${launchCount}",
        )
    ).data
    api.wait(api.management.get_instance_pool, pool.id, "RUNNING")

    def names() -> list[str]:
        found = api.management.list_instance_pool_instances(api.tenancy, pool.id, sort_by="DISPLAYNAME").data
        return [one.display_name for one in found]

    assert names() == ["gpu-1", "gpu-2"]
    api.management.update_instance_pool(pool.id, models.UpdateInstancePoolDetails(size=1))
    api.wait(api.management.get_instance_pool, pool.id, "RUNNING")
    api.management.update_instance_pool(pool.id, models.UpdateInstancePoolDetails(size=2))
    api.wait(api.management.get_instance_pool, pool.id, "RUNNING")
    assert names() == ["gpu-2", "gpu-3"]

    one = api.management.list_instance_pool_instances(api.tenancy, pool.id).data[0]
    api.management.detach_instance_pool_instance(
        pool.id, models.DetachInstancePoolInstanceDetails(instance_id=one.id, is_auto_terminate=True)
    )
    api.wait(api.compute.get_instance, one.id, "TERMINATED")
    api.wait(api.management.get_instance_pool, pool.id, "RUNNING")
    assert api.management.get_instance_pool(pool.id).data.size == 1
    api.management.terminate_instance_pool(pool.id)
    api.wait(api.management.get_instance_pool, pool.id, "TERMINATED")


def test_a_boot_that_fails_late_ends_the_instance_and_reports_why(api: Api, subnet: Any) -> None:
    fault = {"operation": "BootInstance", "status": 500, "code": "InternalError",
             "message": "Out of host capacity.", "delay": 0.05, "times": 1}  # fmt: skip
    (api.home / "faults.json").write_text(json.dumps([fault]))
    reply = api.compute.launch_instance(api.launch_details(subnet, "latest"))
    api.wait(api.compute.get_instance, reply.data.id, "TERMINATED")
    (api.home / "faults.json").unlink()
    request = reply.headers["opc-work-request-id"]
    assert api.work.get_work_request(request).data.status == "FAILED"
    assert [one.message for one in api.work.list_work_request_errors(request).data] == ["Out of host capacity."]
    api.launch(subnet, "latest")


@contextmanager
def stopped_pool(home: Path, size: int, engine: NullEngine | None = None) -> Iterator[tuple[CloudState, str]]:
    """The state of a server that was stopped while it launched a pool."""
    with running(home) as api:
        api.faults({"operation": "BootInstance", "until_removed": True})
        subnet = api.subnet(api.vcn(), prohibit_public_ip_on_vnic=True)
        pool = api.cluster_network(api.configuration(), subnet, size).instance_pools[0].id
        control.stop(api.home)
    api.faults()
    cloud = open_cloud(home, engine or NullEngine(home / "null"), open_authority(home))
    try:
        yield cloud, pool
    finally:
        cloud.close()


def state_for_others(cloud: CloudState, ocid: str) -> str:
    """What is committed, while this thread is in a transaction."""
    with closing(sqlite3.connect(cloud.home / "cloud.db")) as store:
        query = "SELECT json_extract(body, '$.lifecycleState') FROM resource WHERE id = ?"
        return str(store.execute(query, (ocid,)).fetchone()[0])


@pytest.mark.slow
def test_nobody_sees_the_new_state_of_a_pool_before_its_work_request_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_pool(tmp_path, 1) as (cloud, pool):
        request, end_work, seen = cloud.get("instancepool", pool).hidden["work_request"], cloud.end_work, []

        def ending(ocid: str, **more: Any) -> None:
            if ocid == request:
                seen.append(state_for_others(cloud, pool))
            end_work(ocid, **more)

        monkeypatch.setattr(cloud, "end_work", ending)
        converge(cloud, pool)
        assert (seen, state_for_others(cloud, pool)) == (["PROVISIONING"], "RUNNING")


@pytest.mark.slow
def test_nobody_sees_that_a_member_is_gone_before_its_pool_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_pool(tmp_path, 1) as (cloud, pool):
        converge(cloud, pool)
        (member,) = members(cloud, pool)
        seen: list[str] = []
        monkeypatch.setattr(cloud, "member_lost", lambda _pool: seen.append(state_for_others(cloud, member.id)))
        with cloud.store.transaction():
            lifecycle.mark_terminating(cloud, member)
        lifecycle.terminate(cloud, member.id)
        assert (seen, state_for_others(cloud, member.id)) == (["TERMINATING"], "TERMINATED")


class Launching(NullEngine):
    """The null engine, in which something happens while an instance is launched."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def launch(self, request: LaunchRequest) -> None:
        self.meanwhile()
        super().launch(request)


@pytest.mark.slow
def test_a_member_that_is_lost_while_another_one_is_launched_is_replaced_as_well(tmp_path: Path) -> None:
    engine = Launching(tmp_path / "null")
    with stopped_pool(tmp_path, 2, engine) as (cloud, pool):
        converge(cloud, pool)
        first, second = members(cloud, pool)

        def lose(row: Resource) -> None:
            with cloud.store.transaction():
                lifecycle.mark_terminating(cloud, cloud.get("instance", row.id))
            lifecycle.terminate(cloud, row.id)

        def once() -> None:
            engine.meanwhile = lambda: None
            lose(second)

        engine.meanwhile = once
        lose(first)
        wait_for("the pool has come to rest", lambda: cloud.get("instancepool", pool).state == "RUNNING")
        left = members(cloud, pool)
        assert [row.state for row in left] == ["RUNNING", "RUNNING"]
        assert not {row.id for row in left} & {first.id, second.id}


def test_the_oldest_of_the_fullest_fault_domain_goes_first() -> None:
    rows = [Resource(str(n), "instance", {"faultDomain": domain}, seq=n) for n, domain in enumerate("ABBCB")]
    assert next_to_terminate(rows).id == "1"
    assert next_to_terminate([row for row in rows if row.id not in "14"]).id == "0"
