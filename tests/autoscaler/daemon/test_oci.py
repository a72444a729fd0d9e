"""What the cloud's refusals mean, and the real SDK against the local cloud's server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon.oci import OciCloud, RequestFailed, RequestFault, classify
from gpucluster.autoscaler.decide.types import Fault
from gpucluster.autoscaler.policy import Authentication
from gpucluster.errors import CloudError
from gpucluster.oci.host_tag import has_host_tag
from tests.autoscaler.cloud_harness import Site
from tests.localcloud.api_harness import SHAPE, Api, make_host_namespace, running

OOHC = {"operation": "LaunchInstanceConfiguration", "status": 500, "code": "InternalError",
        "message": "Out of host capacity."}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (500, "InternalError", "Out of host capacity.", Fault.CAPACITY),
        (500, "InternalError", "Out of capacity for shape BM.GPU.H100.8 in availability domain AD-1", Fault.CAPACITY),
        (503, "ServiceUnavailable", "out of host capacity", Fault.CAPACITY),
        (500, "InternalError", "Internal server error", Fault.TRANSIENT),
        (502, "BadGateway", "", Fault.TRANSIENT),
        (503, "ServiceUnavailable", "try later", Fault.TRANSIENT),
        (0, "ConnectTimeout", "timed out", Fault.TRANSIENT),
        (0, "RequestException", "connection reset", Fault.TRANSIENT),
        (429, "TooManyRequests", "Too many requests for the user", RequestFault.THROTTLED),
        (401, "NotAuthenticated", "The required information was not provided", RequestFault.UNAUTHENTICATED),
        (400, "LimitExceeded", "The following service limits were exceeded: gpu-h100-count", Fault.LIMIT),
        (400, "QuotaExceeded", "quota", Fault.LIMIT),
        (404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found.", Fault.CONFIGURATION),
        (400, "InvalidParameter", "subnet x not found", Fault.CONFIGURATION),
        (400, "RelatedResourceNotAuthorizedOrNotFound", "image", Fault.CONFIGURATION),
        (400, "InvalidParameter", "hostnameLabel c-e1 is already in use by VNIC ocid1.vnic", Fault.TRANSIENT),
        (409, "InvalidatedRetryToken", "the resource has since been deleted", Fault.TRANSIENT),
        (409, "IncorrectState", "is being changed", Fault.TRANSIENT),
        (409, "LockConflict", "", Fault.TRANSIENT),
        (412, "NoEtagMatch", "", Fault.TRANSIENT),
    ],
)
def test_a_refusal_means(status: int, code: str, message: str, kind: Fault | RequestFault) -> None:
    assert classify(status, code, message) is kind


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started


@pytest.fixture
def site(api: Api) -> Iterator[Site]:
    (api.home / "faults.json").unlink(missing_ok=True)
    made = Site(api, baked=False)
    yield made
    (api.home / "faults.json").unlink(missing_ok=True)
    made.remove_elastic()


def retag(site: Site, instance_id: str, tags: dict[str, str]) -> None:
    """As another program does."""
    import oci

    site.api.compute.update_instance(instance_id, oci.core.models.UpdateInstanceDetails(freeform_tags=tags))


def changed_meanwhile(cloud: OciCloud, change: Callable[[], None]) -> list[str]:
    """Change an instance when `cloud` has read it for the first time. Returns what it asks from now on."""
    asked: list[str] = []
    original = cloud._ask

    def ask(client: str, operation: str, *args: Any, **options: Any) -> Any:
        asked.append(operation)
        answer = original(client, operation, *args, **options)
        if asked == ["get_instance"]:
            change()
        return answer

    cloud._ask = ask  # type: ignore[method-assign]
    return asked


def test_a_launch_carries_all_of_the_configuration_and_what_is_the_nodes_own(site: Site) -> None:
    requests: list[tuple[str, str]] = []
    cloud = site.cloud(public_key=lambda: "ssh-ed25519 BBBB daemon\n", on_request=lambda *one: requests.append(one))
    instance_id, request_id = cloud.launch("compute", "compute-e3", 7, "token-1", {"more": "x"})
    assert request_id
    made = site.api.wait(site.api.compute.get_instance, instance_id, "RUNNING")
    assert made.display_name == "compute-e3"
    assert made.freeform_tags == {
        "gpucluster": "demo", "role": "compute", "pool": "compute", "node": "compute-e3", "generation": "7",
    }  # fmt: skip
    assert made.metadata == {"ssh_authorized_keys": "ssh-ed25519 AAAA one\nssh-ed25519 BBBB daemon", "more": "x"}
    listed = site.api.compute.list_instances(site.api.tenancy, compute_cluster_id=site.compute_cluster.id).data
    assert [one.id for one in listed] == [instance_id]
    assert cloud.address(instance_id).startswith("10.77.0.")
    [seen] = cloud.instances()
    assert (seen.id, seen.node, seen.pool, seen.generation, seen.state) == (
        instance_id, "compute-e3", "compute", 7, "RUNNING",
    )  # fmt: skip
    assert abs(seen.created_at - made.time_created.timestamp()) < 0.01
    assert ("launch_instance_configuration", "200") in requests
    attachment = site.api.compute.list_vnic_attachments(site.api.tenancy, instance_id=instance_id).data[0]
    assert site.api.network.get_vnic(attachment.vnic_id).data.hostname_label == "compute-e3"


@pytest.fixture
def virtual(api: Api) -> Iterator[Site]:
    """With a pool of a VM shape, which is preemptible."""
    import oci

    size = oci.core.models.InstanceConfigurationLaunchInstanceShapeConfigDetails(ocpus=1, memory_in_gbs=4)
    made = Site(api, baked=False, shape=SHAPE, shape_config=size, preferred_maintenance_action="REBOOT")
    pool = replace(made.policy.pools["compute"], shape=SHAPE, compute_cluster_id=None, preemptible=True)
    made.policy = replace(made.policy, pools={"compute": pool})
    yield made
    made.faults()
    made.remove_elastic()


def test_a_preemptible_node_has_all_of_the_configuration_as_well(virtual: Site) -> None:
    requests: list[tuple[str, str]] = []
    cloud = virtual.cloud(public_key=lambda: "ssh-ed25519 BBBB daemon\n", on_request=lambda *one: requests.append(one))
    instance_id, request_id = cloud.launch("compute", "compute-e3", 7, "token-p", {"more": "x"})
    assert request_id
    assert cloud.launch("compute", "compute-e3", 7, "token-p", {"more": "x"})[0] == instance_id
    made = virtual.api.wait(virtual.api.compute.get_instance, instance_id, "RUNNING")
    action = made.preemptible_instance_config.preemption_action
    assert (action.type, action.preserve_boot_volume) == ("TERMINATE", False)
    assert (made.display_name, made.shape, made.shape_config.ocpus) == ("compute-e3", SHAPE, 1)
    assert made.freeform_tags["generation"] == "7"
    assert made.metadata == {"ssh_authorized_keys": "ssh-ed25519 AAAA one\nssh-ed25519 BBBB daemon", "more": "x"}
    assert ("launch_instance", "200") in requests
    assert not [name for name, _ in requests if name == "launch_instance_configuration"]
    [seen] = cloud.instances()
    assert (seen.id, seen.node, seen.generation) == (instance_id, "compute-e3", 7)
    assert cloud.terminate(instance_id)


def test_a_preemptible_node_that_the_cloud_takes_back_is_gone_without_a_cause(virtual: Site) -> None:
    virtual.faults({"operation": "ReclaimCapacity", "until_removed": True})
    cloud = virtual.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-r")
    virtual.api.wait(virtual.api.compute.get_instance, instance_id, "RUNNING")
    virtual.faults()
    virtual.api.wait(virtual.api.compute.get_instance, instance_id, "TERMINATED")
    assert cloud.cause(instance_id) is None


def test_out_of_preemptible_capacity_is_out_of_capacity(virtual: Site) -> None:
    virtual.faults({**OOHC, "operation": "LaunchInstance"})
    with pytest.raises(RequestFailed) as caught:
        virtual.cloud().launch("compute", "compute-e1", 1, "token-o")
    assert caught.value.kind is Fault.CAPACITY


def test_baked_nodes_get_no_key_of_ours(api: Api) -> None:
    site = Site(api)
    instance_id, _ = site.cloud(public_key=lambda: "ssh-ed25519 BBBB daemon").launch(
        "compute", "compute-e1", 1, "token-2"
    )
    assert "BBBB" not in api.compute.get_instance(instance_id).data.metadata["ssh_authorized_keys"]
    assert site.cloud().terminate(instance_id)
    api.wait(api.compute.get_instance, instance_id, "TERMINATED")  # the next test counts elastic instances


def test_the_same_token_is_the_same_instance_and_the_name_of_a_living_one_is_taken(site: Site) -> None:
    cloud = site.cloud()
    first, _ = cloud.launch("compute", "compute-e1", 1, "token-3")
    assert cloud.launch("compute", "compute-e1", 1, "token-3")[0] == first
    assert len(site.elastic()) == 1
    with pytest.raises(RequestFailed) as caught:
        cloud.launch("compute", "compute-e1", 2, "token-4")
    assert caught.value.kind is Fault.TRANSIENT  # the name is in use
    site.api.wait(site.api.compute.get_instance, first, "RUNNING")
    cloud.terminate(first)
    site.api.wait(site.api.compute.get_instance, first, "TERMINATED")
    with pytest.raises(RequestFailed) as caught:
        cloud.launch("compute", "compute-e1", 1, "token-3")
    assert (caught.value.code, caught.value.kind) == ("InvalidatedRetryToken", Fault.TRANSIENT)


def test_out_of_capacity_is_asked_for_once_and_known(site: Site) -> None:
    requests: list[tuple[str, str]] = []
    site.faults(OOHC)
    with pytest.raises(RequestFailed) as caught:
        site.cloud(on_request=lambda *one: requests.append(one)).launch("compute", "compute-e1", 1, "token-5")
    assert caught.value.kind is Fault.CAPACITY
    assert caught.value.words == "InternalError: Out of host capacity."
    assert caught.value.request_id
    assert [code for operation, code in requests if operation.startswith("launch")] == ["InternalError"]


def test_a_late_failure_is_seen_with_its_cause_for_those_who_remember(site: Site) -> None:
    site.faults({**OOHC, "operation": "BootInstance"})
    cloud = site.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-6")
    site.api.wait(site.api.compute.get_instance, instance_id, "TERMINATED")
    assert cloud.instances() == ()
    assert [one.state for one in cloud.instances([instance_id])] == ["TERMINATED"]
    assert cloud.cause(instance_id) == (Fault.CAPACITY, "InternalError: Out of host capacity.")


def test_one_that_was_terminated_by_hand_has_no_cause(site: Site) -> None:
    cloud = site.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-7")
    site.api.wait(site.api.compute.get_instance, instance_id, "RUNNING")
    site.api.compute.terminate_instance(instance_id)
    assert cloud.cause(instance_id) is None


def test_only_elastic_nodes_of_this_cluster_are_listed_or_terminated(site: Site) -> None:
    site.policy = replace(site.policy, identity="ab12")
    cloud = site.cloud()
    tags: list[dict[str, str]] = [
        {},
        {"gpucluster": "demo", "pool": "compute"},  # a node of Terraform's, or a builder
        {"gpucluster": "other", "node": "compute-e1", "generation": "1"},
        {"gpucluster": "demo", "gpucluster-id": "cd34", "node": "compute-e1", "generation": "1"},  # the same name
    ]
    made = [site.api.launch(site.subnet, f"foreign-{n}", freeform_tags=tag) for n, tag in enumerate(tags)]
    assert cloud.instances() == ()
    for instance in made:
        with pytest.raises(CloudError, match="is not changed"):
            cloud.terminate(instance.id)
        assert site.api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"
        site.api.compute.terminate_instance(instance.id)
    assert cloud.terminate("ocid1.instance.local..gone") is False


def test_terminating_twice_is_fine_and_takes_the_boot_volume_along(site: Site) -> None:
    cloud = site.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-8")
    site.api.wait(site.api.compute.get_instance, instance_id, "RUNNING")
    assert cloud.terminate(instance_id) is True
    site.api.wait(site.api.compute.get_instance, instance_id, "TERMINATED")
    assert cloud.terminate(instance_id) is False


def test_a_physical_host_is_reported_once_and_the_tags_of_the_node_stay(site: Site) -> None:
    cloud = site.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-reported")
    site.api.wait(site.api.compute.get_instance, instance_id, "RUNNING")
    before = site.api.compute.get_instance(instance_id).data
    # The namespace is not made as yet.
    with pytest.raises(RequestFailed, match="RelatedResourceNotAuthorizedOrNotFound"):
        cloud.report_host(instance_id)
    make_host_namespace(site.api)
    # Another tag is set between our read and our change.
    asked = changed_meanwhile(cloud, lambda: retag(site, instance_id, {**before.freeform_tags, "team": "blue"}))
    assert cloud.report_host(instance_id) is True
    assert asked == ["get_instance", "update_instance", "get_instance", "update_instance", "get_instance"]
    after = site.api.compute.get_instance(instance_id).data
    assert has_host_tag(after.defined_tags)
    assert after.freeform_tags == {**before.freeform_tags, "team": "blue"}
    assert cloud.report_host(instance_id) is False
    assert cloud.terminate(instance_id) is True
    site.api.wait(site.api.compute.get_instance, instance_id, "TERMINATED")
    assert cloud.report_host(instance_id) is False
    assert cloud.report_host("ocid1.instance.local..gone") is False


def test_the_host_of_an_instance_of_others_is_not_reported(site: Site) -> None:
    foreign = site.api.launch(site.subnet, "foreign")
    with pytest.raises(CloudError, match="is not changed"):
        site.cloud().report_host(foreign.id)
    site.api.compute.terminate_instance(foreign.id)


def test_an_instance_thatchanged_meanwhile_is_looked_at_again(site: Site) -> None:
    cloud = site.cloud()
    instance_id, _ = cloud.launch("compute", "compute-e1", 1, "token-9")
    site.api.wait(site.api.compute.get_instance, instance_id, "RUNNING")
    # The tag is removed between our read and our termination.
    asked = changed_meanwhile(cloud, lambda: retag(site, instance_id, {}))
    with pytest.raises(CloudError, match="is not changed"):
        cloud.terminate(instance_id)
    assert asked == ["get_instance", "terminate_instance", "get_instance"]
    site.api.compute.terminate_instance(instance_id)


def test_no_answer_is_transient_and_names_what_was_tried(site: Site) -> None:
    away = replace(site.policy.authentication, endpoint="http://127.0.0.1:9")
    site.policy = replace(site.policy, authentication=away)
    with pytest.raises(RequestFailed, match=r"list_instances: no answer from the cloud") as caught:
        site.cloud().instances()
    assert (caught.value.status, caught.value.kind) == (0, Fault.TRANSIENT)


def test_a_metadata_service_that_can_not_be_reached_is_reported_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    asked.append(connection.recv(1000).partition(b" HTTP")[0])
                    connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        monkeypatch.setenv("OCI_METADATA_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/opc/v2")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        site.policy = replace(site.policy, authentication=Authentication("instance_principal"))
        with pytest.raises(RequestFailed) as failed:
            site.cloud().instances()
        assert failed.value.kind is Fault.TRANSIENT
        assert len(asked) == len(set(asked)) > 0, "each request once"
        server.shutdown(socket.SHUT_RDWR)


def test_a_refused_signature_is_answered_once_with_the_key_as_it_is_now(site: Site, tmp_path: Path) -> None:
    from dataclasses import replace

    good = (site.api.home / "credentials" / "config").read_text()
    config = tmp_path / "config"
    config.write_text(good.replace("user=ocid1.user", "user=ocid1.nobody"))
    site.policy = replace(site.policy, authentication=replace(site.policy.authentication, config_file=str(config)))
    requests: list[tuple[str, str]] = []
    cloud = site.cloud(on_request=lambda *one: requests.append(one))
    with pytest.raises(RequestFailed) as caught:
        cloud.instances()
    assert caught.value.kind is RequestFault.UNAUTHENTICATED
    assert len(requests) == 2  # not again and again
    config.write_text(good)
    threads = [threading.Thread(target=cloud.instances) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cloud.instances() == ()


def test_all_pages_are_listed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucluster.autoscaler.daemon.oci.PAGE", 2)
    cloud = site.cloud()
    for number in range(1, 6):
        cloud.launch("compute", f"compute-e{number}", 1, f"token-page-{number}")
    assert {one.node for one in cloud.instances()} == {f"compute-e{number}" for number in range(1, 6)}
