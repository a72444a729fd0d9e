"""Numbers and booleans as text, as oci-cli sends them. The bodies were captured from oci-cli 3.95.1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.provider.rest import ApiCredentials, RestClient, ServiceError
from gpucluster.localcloud.state import member_types
from gpucluster.localcloud.state.wire import ApiError, Call
from tests.localcloud.api_harness import Api, running


def read(**body: Any) -> Any:
    return member_types.read(body)


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ({"size": "2"}, {"size": 2}),
        ({"size": 2}, {"size": 2}),
        ({"ocpus": "2.5"}, {"ocpus": 2.5}),
        ({"bootVolumeSizeInGBs": "-1"}, {"bootVolumeSizeInGBs": -1}),
        ({"assignPublicIp": "false"}, {"assignPublicIp": False}),
        ({"isEnabled": "True"}, {"isEnabled": True}),
        ({"details": {"targetResourcePort": "22"}}, {"details": {"targetResourcePort": 22}}),
        ({"rules": [{"tcpOptions": {"destinationPortRange": {"min": "1", "max": 2}}}]},
         {"rules": [{"tcpOptions": {"destinationPortRange": {"min": 1, "max": 2}}}]}),
        ({"displayName": "22", "protocol": "6", "cidrBlock": "10.0.0.0/8"},
         {"displayName": "22", "protocol": "6", "cidrBlock": "10.0.0.0/8"}),
        ({"size": None}, {"size": None}),
    ],
)  # fmt: skip
def test_what_is_sent_as_text_is_read_as_its_type(sent: dict[str, Any], taken: dict[str, Any]) -> None:
    assert json.dumps(read(**sent)) == json.dumps(taken)


def test_tags_and_metadata_are_the_clients_own() -> None:
    own = {"size": "4", "isEnabled": "true", "deeper": {"port": "1"}}
    body = dict.fromkeys(("freeformTags", "definedTags", "metadata", "extendedMetadata"), own)
    assert read(**body) == body


@pytest.mark.parametrize("sent", [{"size": "two"}, {"size": ""}, {"ocpus": "1e9"}, {"a": [{"isEnabled": "yes"}]}])
def test_text_that_is_not_a_number_is_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="must be") as caught:
        Call("CreateInstancePool", {}, {}, {}, json.dumps(sent).encode()).body()
    assert (caught.value.status, caught.value.code) == (400, "CannotParseRequest")


# --- with a server -----


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started


@pytest.fixture(scope="module")
def rest(api: Api) -> RestClient:
    """A client that sends a body as it is: the SDK makes numbers of text before it sends them."""
    config = api.config
    credentials = ApiCredentials(config["tenancy"], config["user"], config["fingerprint"], Path(config["key_file"]))
    return RestClient(api.endpoint, credentials)


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhFfD4tfF5gpBIwWyLRqqJHPvtKsbfLRfJ0a0XVJmNh test"


@pytest.mark.slow
def test_the_requests_of_oci_cli(api: Api, rest: RestClient) -> None:
    subnet = api.subnet(api.vcn("10.91.0.0/16", "cli"), "10.91.0.0/24")
    bastion = rest.call("POST", "/20210331/bastions", body={
        "bastionType": "STANDARD", "compartmentId": api.tenancy, "targetSubnetId": subnet.id,
        "clientCidrBlockAllowList": ["127.0.0.0/8"], "maxSessionTtlInSeconds": 3600,
    }).body["id"]  # fmt: skip
    api.wait(api.bastions.get_bastion, bastion, "ACTIVE")
    # oci bastion session create-port-forwarding --target-port 22 --session-ttl 1800
    session = rest.call("POST", "/20210331/sessions", body={
        "targetResourceDetails": {"targetResourcePrivateIpAddress": "10.91.0.2", "targetResourcePort": "22",
                                  "sessionType": "PORT_FORWARDING"},
        "bastionId": bastion, "keyDetails": {"publicKeyContent": KEY}, "sessionTtlInSeconds": "1800",
    }).body  # fmt: skip
    assert session["targetResourceDetails"]["targetResourcePort"] == 22
    # oci compute instance launch --from-json file://...
    launched = rest.call("POST", "/20160918/instances", body={
        "compartmentId": api.tenancy, "availabilityDomain": api.domain, "shape": "VM.Standard.E5.Flex",
        "shapeConfig": {"ocpus": "2", "memoryInGBs": "16"}, "createVnicDetails": {"subnetId": subnet.id,
                                                                                  "assignPublicIp": "false"},
        "sourceDetails": {"sourceType": "image", "imageId": api.image().id, "bootVolumeSizeInGBs": "60"},
    }).body  # fmt: skip
    assert (launched["shapeConfig"]["ocpus"], launched["shapeConfig"]["memoryInGBs"]) == (2, 16)
    [volume] = api.block.list_boot_volumes(availability_domain=api.domain, compartment_id=api.tenancy).data
    assert volume.size_in_gbs == 60
    vnic = api.compute.list_vnic_attachments(api.tenancy, instance_id=launched["id"]).data[0].vnic_id
    assert api.network.get_vnic(vnic).data.public_ip is None, "the text false is not true"
    reservation = rest.call("POST", "/20160918/computeCapacityReservations", body={
        "compartmentId": api.tenancy, "availabilityDomain": api.domain, "instanceReservationConfigs": [
            {"instanceShape": "VM.Standard.E5.Flex", "reservedCount": "2",
             "instanceShapeConfig": {"ocpus": "1", "memoryInGBs": "8"}}],
    }).body  # fmt: skip
    assert reservation["instanceReservationConfigs"][0]["reservedCount"] == 2
    with pytest.raises(ServiceError, match="size must be a number"):
        rest.call("POST", "/20160918/instancePools", body={"size": "many"})
