"""Recovery at the start of the server: after a kill, with rows or containers that are missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from oci.core import models

from gpucluster.localcloud import control
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


def test_a_restart_keeps_everything(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    instance = api.launch(subnet, "stays")
    network = api.cluster_network(api.configuration(), subnet, 2)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    members = {one.id for one in api.members(network.id)}
    control.stop(api.home)
    down = control.status(api.home)
    assert (down.running, down.instances) == (False, {"RUNNING": 3})
    api.start()
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"
    assert {one.id for one in api.members(network.id)} == members


def test_after_a_crash_work_is_finished_and_orphans_are_removed(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    steady, ending, booting, lost = (api.launch(subnet, name) for name in ("steady", "ending", "booting", "lost"))
    network = api.cluster_network(api.configuration(), subnet, 2)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    api.kill()
    # After a crash there are rows without containers, and containers without rows.
    machines = api.home / "null" / "machines"
    with sqlite3.connect(api.home / "cloud.db") as database:
        for ocid, state in ((ending.id, "TERMINATING"), (booting.id, "PROVISIONING")):
            database.execute(
                "UPDATE resource SET body = json_set(body, '$.lifecycleState', ?) WHERE id = ?", (state, ocid)
            )
        database.execute(
            "UPDATE resource SET body = json_set(body, '$.size', 3, '$.lifecycleState', 'SCALING')"
            " WHERE kind = 'instancepool'"
        )
        database.execute(
            "UPDATE resource SET body = json_set(body, '$.lifecycleState', 'SCALING') WHERE kind = 'clusternetwork'"
        )
    database.close()
    (machines / f"gpucluster-booting-{booting.id[-12:]}").unlink()
    (machines / f"gpucluster-lost-{lost.id[-12:]}").unlink()
    (machines / "gpucluster-orphan").write_text('{"state": "running", "ocid": "ocid1.instance.local..gone"}')
    (api.home / "null" / "networks" / "gpucluster-orphan-net").write_text("{}")
    stopped = machines / f"gpucluster-steady-{steady.id[-12:]}"
    stopped.write_text(stopped.read_text().replace("running", "stopped"))

    api.start()
    assert set(api.status.orphans) == {"gpucluster-orphan", "gpucluster-orphan-net"}
    assert not (machines / "gpucluster-orphan").exists()
    api.wait(api.compute.get_instance, ending.id, "TERMINATED")
    api.wait(api.compute.get_instance, lost.id, "TERMINATED")
    api.wait(api.compute.get_instance, booting.id, "RUNNING")
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert len(api.members(network.id)) == 3
    wait_for("the stopped machine runs", lambda: '"running"' in stopped.read_text())
    api.wait(api.compute.get_instance, steady.id, "RUNNING")
    running_now = {one.id for one in api.compute.list_instances(api.tenancy, lifecycle_state="RUNNING").data}
    assert len(running_now) == 5
    assert len(list(machines.iterdir())) == 5


def test_the_work_request_of_a_lost_reboot_ends_and_that_of_a_boot_volume_goes_on(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    first, second = (api.launch(subnet, name).id for name in ("first", "second"))
    api.faults({"operation": "ReplaceBootVolume", "until_removed": True})
    image = api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version="12").data[0].id
    source = models.UpdateInstanceSourceViaImageDetails(image_id=image)
    update = api.compute.update_instance(second, models.UpdateInstanceDetails(source_details=source))
    control.stop(api.home)
    cloud = open_cloud(api.home, NullEngine(api.home / "null"), open_authority(api.home))
    with cloud.store.transaction():
        _, reboot = lifecycle.begin_action(cloud, cloud.get("instance", first), "SOFTRESET", "UpdateInstance")
    cloud.close()  # as if it were killed before the job begins
    api.start()
    api.faults()
    api.wait(api.compute.get_instance, first, "RUNNING")
    assert api.work.get_work_request(reboot).data.status == "FAILED"
    api.wait(api.compute.get_instance, second, "RUNNING")
    assert api.work.get_work_request(update.headers["opc-work-request-id"]).data.status == "SUCCEEDED"


def test_killed_anywhere_in_the_middle_of_launches_it_converges(api: Api) -> None:
    subnet, configuration = api.subnet(api.vcn()), api.configuration()
    network = api.cluster_network(configuration, subnet, 12)
    api.kill()
    api.start()
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert len(api.members(network.id)) == 12
    addresses = [one.ip_address for one in api.network.list_private_ips(subnet_id=subnet.id).data]
    assert len(set(addresses)) == 12
    api.management.terminate_cluster_network(network.id)
    api.kill()
    api.start()
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    assert list((api.home / "null" / "machines").iterdir()) == []
    api.network.delete_subnet(subnet.id)


def test_a_network_that_is_gone_is_made_again(api: Api) -> None:
    vcn = api.vcn()
    network = api.home / "null" / "networks" / f"gpucluster-{vcn.id[-12:]}"
    api.kill()
    network.unlink()
    api.start()
    assert network.exists()
