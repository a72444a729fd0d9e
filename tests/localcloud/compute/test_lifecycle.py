"""The life cycle of an instance: boot, stop, start, termination."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from gpucluster.localcloud import control
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.compute.custom_images import USES
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.oci.states import LifecycleState
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.elastic_controller import TAGS, Controller


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("instances"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def private(api: Api, subnet: Any) -> Any:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    return api.subnet(vcn, "10.77.1.0/24", dns_label="prv", prohibit_public_ip_on_vnic=True)


def vnic_of(api: Api, instance: Any) -> Any:
    attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data[0]
    return api.network.get_vnic(attachment.vnic_id).data


def test_the_life_of_an_instance(api: Api, subnet: Any) -> None:
    reply = api.compute.launch_instance(
        api.launch_details(subnet, "life", metadata={"ssh_authorized_keys": "ssh-ed25519 AAAA a"})
    )
    assert reply.data.lifecycle_state == "PROVISIONING"
    instance = api.wait(api.compute.get_instance, reply.data.id, "RUNNING")
    assert api.work.get_work_request(reply.headers["opc-work-request-id"]).data.status == "SUCCEEDED"
    assert (instance.shape_config.ocpus, instance.shape_config.memory_in_gbs) == (1.0, 4.0)
    assert instance.source_details.image_id == instance.image_id
    assert instance.extended_metadata == {}
    vnic = vnic_of(api, instance)
    assert vnic.is_primary
    assert vnic.hostname_label == "life"
    assert vnic.private_ip.startswith("10.77.0.")
    assert vnic.public_ip == vnic.private_ip  # the host is on the VCN's bridge
    attachment = api.compute.list_boot_volume_attachments(
        instance.availability_domain, api.tenancy, instance_id=instance.id
    )
    volume = api.block.get_boot_volume(attachment.data[0].boot_volume_id).data
    assert (volume.lifecycle_state, volume.size_in_gbs) == ("AVAILABLE", 50)
    assert api.network.list_ipv6s(vnic_id=vnic.id).data == []

    assert api.compute.terminate_instance(instance.id).status == 204
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert instance.id in [one.id for one in api.compute.list_instances(api.tenancy).data]
    assert api.block.get_boot_volume(volume.id).data.lifecycle_state == "TERMINATED"
    detached = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
    assert [one.lifecycle_state for one in detached] == ["DETACHED"]
    assert api.network.list_private_ips(subnet_id=subnet.id, ip_address=vnic.private_ip).data == []
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.terminate_instance(instance.id)


def test_power_actions(api: Api, private: Any) -> None:
    instance = api.launch(private, "power")
    with refused(409, "IncorrectState"):
        api.compute.instance_action(instance.id, "START")
    assert api.compute.instance_action(instance.id, "STOP").data.lifecycle_state == "STOPPING"
    api.wait(api.compute.get_instance, instance.id, "STOPPED")
    api.compute.instance_action(instance.id, "START")
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    api.compute.instance_action(instance.id, "SOFTRESET")
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    with refused(400, "InvalidParameter"):
        api.compute.instance_action(instance.id, "EXPLODE")


@pytest.fixture(scope="module")
def configuration(api: Api, subnet: Any) -> Any:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id, assign_public_ip=False)
    return api.configuration(create_vnic_details=vnic, freeform_tags=TAGS)


@pytest.fixture(scope="module")
def controller(api: Api, subnet: Any, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(api, subnet, tmp_path_factory.mktemp("controller") / "config")


@pytest.mark.slow
def test_an_instance_is_terminated_as_it_was_seen_or_not_at_all(
    api: Api, controller: Controller, configuration: Any
) -> None:
    instance = api.wait(controller.compute.get_instance, controller.launch(configuration, "gpu-e4").data.id, "RUNNING")
    seen = controller.compute.get_instance(instance.id).headers["etag"]
    api.compute.update_instance(instance.id, models.UpdateInstanceDetails(freeform_tags={"keep": "me"}))
    with refused(412, "NoEtagMatch"):
        controller.compute.terminate_instance(instance.id, if_match=seen, preserve_boot_volume=False)
    seen = controller.compute.get_instance(instance.id).headers["etag"]
    controller.compute.terminate_instance(instance.id, if_match=seen, preserve_boot_volume=False)
    api.wait(controller.compute.get_instance, instance.id, "TERMINATED")
    with refused(404, "NotAuthorizedOrNotFound"):
        controller.compute.terminate_instance(instance.id)


class Asked(NullEngine):
    """The null engine, which calls something when it is asked for a state."""

    on_state: Callable[[], object] = staticmethod(lambda: None)
    on_start: Callable[[], object] = staticmethod(lambda: None)
    on_terminate: Callable[[], object] = staticmethod(lambda: None)

    def state(self, name: str) -> RunState:
        self.on_state()
        return super().state(name)

    def start(self, name: str) -> None:
        self.on_start()
        super().start(name)

    def terminate(self, name: str) -> None:
        super().terminate(name)
        self.on_terminate()


@pytest.mark.slow
def test_who_waits_for_the_work_request_of_a_reboot_finds_the_instance_running(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as api:
        own = api.launch(api.subnet(api.vcn()), "one").id
        control.stop(api.home)
        engine = Asked(api.home / "null")
        cloud = open_cloud(api.home, engine, open_authority(api.home))
        try:
            with cloud.store.transaction():
                instance = cloud.get("instance", own)
                _, work_request = lifecycle.begin_action(cloud, instance, "SOFTRESET", "UpdateInstance")

            def request() -> str:
                return str(cloud.get("coreservicesworkrequest", work_request).body["status"])

            seen: list[str] = []
            engine.on_state = lambda: seen.append(request())
            lifecycle.run_action(cloud, own, work_request)
            assert seen == ["IN_PROGRESS"], "before the state is known"
            assert (cloud.get("instance", own).state, request()) == ("RUNNING", "SUCCEEDED")
        finally:
            cloud.close()


@pytest.mark.slow
def test_a_request_that_comes_while_an_instance_boots_again_by_itself_is_carried_out(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as api:
        own = api.launch(api.subnet(api.vcn()), "one").id
        control.stop(api.home)
        engine = Asked(api.home / "null")
        cloud = open_cloud(api.home, engine, open_authority(api.home))
        asked: list[str] = []

        def stop() -> None:
            with cloud.store.transaction():
                instance = cloud.get("instance", own)
                asked.append(lifecycle.begin_action(cloud, instance, "STOP", "InstanceAction")[1])

        try:
            engine.on_start = stop
            with cloud.locked(own):
                lifecycle.start_stopped(cloud, own)
            lifecycle.run_action(cloud, own, asked[0])
            request = cloud.get("coreservicesworkrequest", asked[0]).body["status"]
            assert (cloud.get("instance", own).state, request) == ("STOPPED", "SUCCEEDED")
        finally:
            cloud.close()


@pytest.mark.slow
def test_the_last_two_instances_of_a_deleted_image_end_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "cloud") as api:
        subnet = api.subnet(api.vcn())
        base = api.launch(subnet, "base")
        details = models.CreateImageDetails(compartment_id=api.tenancy, instance_id=base.id, display_name="mine")
        image = api.wait(api.compute.get_image, api.compute.create_image(details).data.id, "AVAILABLE")
        source = models.InstanceSourceViaImageDetails(image_id=image.id)
        users = [api.launch(subnet, name, source_details=source).id for name in ("one", "two")]
        api.compute.delete_image(image.id)
        control.stop(api.home)
        engine = Asked(api.home / "null")
        cloud = open_cloud(api.home, engine, open_authority(api.home))
        set_state, waits = cloud.set_state, []

        def recording(kind: str, ocid: str, state: LifecycleState, **more: Any) -> Any:
            if ocid in users and state == LifecycleState.TERMINATED:
                # Who has looked at the image's users meanwhile would have found this instance.
                with ThreadPoolExecutor(1) as other:
                    waits.append(not other.submit(cloud._locks[USES].acquire, blocking=False).result())
            return set_state(kind, ocid, state, **more)

        monkeypatch.setattr(cloud, "set_state", recording)
        engine.on_terminate = threading.Barrier(2).wait
        try:
            for ocid in users:
                with cloud.store.transaction():
                    lifecycle.mark_terminating(cloud, cloud.get("instance", ocid))
            wait([lifecycle.start_termination(cloud, ocid) for ocid in users])
            assert ([cloud.get("instance", ocid).state for ocid in users], waits) == (["TERMINATED"] * 2, [True] * 2)
            assert list((api.home / "null" / "images").iterdir()) == []
        finally:
            cloud.close()
