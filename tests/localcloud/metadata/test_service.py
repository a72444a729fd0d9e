"""The metadata service and instance principals, with the real SDK where it is a client.

Without containers: a test names the address that a request comes from. The way to it: test_metadata_path.py.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oci
import pytest
import uvicorn

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.metadata.documents import selected
from gpucluster.localcloud.metadata.service import MetadataService
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import GPU_SHAPE, Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

HEADER = {"authorization": "Bearer Oracle"}
USER_DATA = base64.b64encode(b"#cloud-config\n").decode()


class Site:
    """A server with two instances, and the metadata service of its home in this process."""

    def __init__(self, home: Path, api: Api) -> None:
        self.api = api
        subnet = api.subnet(api.vcn(), "10.77.0.0/24")
        self.one = api.launch(
            subnet, "one",
            metadata={"ssh_authorized_keys": "ssh-ed25519 AAAA me", "user_data": USER_DATA},
            freeform_tags={"gpucluster": "demo"}, extended_metadata={"more": {"deep": [1, "two"]}},
        )  # fmt: skip
        hardened = oci.core.models.InstanceOptions(are_legacy_imds_endpoints_disabled=True)
        self.two = api.launch(subnet, "two", instance_options=hardened)
        authority = open_authority(home)
        self.cloud = open_cloud(home, NullEngine(home / "null"), authority)
        self.service = MetadataService(self.cloud, authority)
        self.addresses = {name: self.address(found.id) for name, found in (("one", self.one), ("two", self.two))}

    def address(self, ocid: str) -> str:
        attachment = self.api.compute.list_vnic_attachments(self.api.tenancy, instance_id=ocid).data[0]
        return str(self.api.network.get_vnic(attachment.vnic_id).data.private_ip)

    def get(self, path: str, who: str = "one", headers: dict[str, str] | None = None, method: str = "GET") -> Any:
        sent = HEADER if headers is None else headers
        return self.service.answer(method, path, sent, self.addresses.get(who, who))

    def json(self, path: str, who: str = "one") -> Any:
        answer = self.get(path, who)
        assert (answer.status, answer.media_type) == (200, "application/json")
        return json.loads(answer.text)

    @contextmanager
    def served_to(self, who: str) -> Iterator[str]:
        """The service at an address of this machine, for one instance. Yields the SDK's OCI_METADATA_BASE_URL."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self.service({**scope, "client": (self.addresses[who], 1)}, receive, send)

        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        wait_for("the service has started, or its thread has ended", lambda: server.started or not thread.is_alive())
        assert thread.is_alive()
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/opc/v2"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def site_in(home: Path) -> Iterator[Site]:
    """A site whose local cloud runs until the block ends.

    Args:
        home: of the local cloud.
    """
    with running(home) as api:
        made = Site(home, api)
        yield made
        made.cloud.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


# --- documents -----


def test_an_instance_gets_the_same_facts_as_the_api_reports(site: Site) -> None:
    told = site.json("/opc/v2/instance/")
    instance = site.one
    assert told["id"] == instance.id
    assert (told["displayName"], told["hostname"], told["shape"]) == ("one", "one", instance.shape)
    assert told["compartmentId"] == instance.compartment_id
    assert told["tenantId"] == site.api.tenancy
    assert told["image"] == instance.image_id
    assert (told["region"], told["canonicalRegionName"]) == ("local-1", "local-1")
    assert (told["availabilityDomain"], told["ociAdName"]) == (instance.availability_domain, "local-1-ad-1")
    assert told["faultDomain"] == instance.fault_domain
    assert told["freeformTags"] == {"gpucluster": "demo"}
    assert told["definedTags"] == {}
    assert told["metadata"] == {
        "ssh_authorized_keys": "ssh-ed25519 AAAA me", "user_data": USER_DATA, "more": {"deep": [1, "two"]},
    }  # fmt: skip
    assert (told["shapeConfig"]["ocpus"], told["shapeConfig"]["memoryInGBs"]) == (1.0, 4.0)
    assert told["state"] == "Running"
    assert told["timeCreated"] == int(instance.time_created.timestamp() * 1000)
    assert told["agentConfig"]["monitoringDisabled"] is False
    assert told["regionInfo"] == {
        "realmKey": "local", "realmDomainComponent": "invalid", "regionKey": "LOC", "regionIdentifier": "local-1",
    }  # fmt: skip


def test_each_member_can_be_asked_for_alone(site: Site) -> None:
    for name, value in site.json("/opc/v2/instance/").items():
        answer = site.get(f"/opc/v2/instance/{name}")
        assert answer.status == 200
        assert answer.text == value if isinstance(value, str) else json.loads(answer.text) == value
    assert site.get("/opc/v2/instance/metadata/user_data").text == USER_DATA
    assert site.get("/opc/v2/instance/regionInfo/regionKey").text == "LOC"
    assert site.json("/opc/v2/instance/metadata/more/deep") == [1, "two"]
    assert site.get("/opc/v2/instance").text == site.get("/opc/v2/instance/").text


def test_the_vnics_of_an_instance(site: Site) -> None:
    [vnic] = site.json("/opc/v2/vnics/")
    address = site.addresses["one"]
    assert vnic["privateIp"] == address
    assert (vnic["subnetCidrBlock"], vnic["virtualRouterIp"], vnic["nicIndex"]) == ("10.77.0.0/24", "10.77.0.1", 0)
    known = site.api.network.get_vnic(vnic["vnicId"]).data
    assert (known.private_ip, known.mac_address) == (address, vnic["macAddr"])
    assert site.get("/opc/v2/vnics/0/privateIp").text == address


@pytest.mark.parametrize(
    "path",
    ["/", "/opc/", "/opc/v3/instance/", "/opc/v2/", "/opc/v2/instance/nothing", "/opc/v2/instance/id/deeper",
     "/opc/v2/vnics/1/", "/opc/v2/vnics/-1/", "/opc/v2/identity/", "/opc/v2/identity/other.pem", "/openstack/latest/",
     "/latest/meta-data/"],
)  # fmt: skip
def test_what_is_not_there(site: Site, path: str) -> None:
    assert site.get(path).status == 404


def test_a_part_of_a_document() -> None:
    assert selected({"a": [{"b": True}]}, ["a", "0", "b"]) == "true"
    assert selected({"a": None}, ["a"]) == "null"
    assert selected({"a": "text"}, ["a", "0"]) is None


# --- who may ask -----


def test_the_address_decides_which_instance_it_is(site: Site) -> None:
    assert site.get("/opc/v2/instance/id", "two").text == site.two.id
    assert site.get("/opc/v2/instance/id", "10.77.0.200").status == 404
    assert site.get("/opc/v2/instance/id", "10.77.0.1").status == 404, "this machine at the gateway"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer Other"}, 401),
        ({"authorization": "Basic T3JhY2xl"}, 401),
        ({**HEADER, "x-forwarded-for": "10.77.0.9"}, 403),
        ({**HEADER, "x-forwarded-host": "metadata"}, 403),
        ({**HEADER, "forwarded": "for=10.77.0.9"}, 403),
    ],
)
def test_a_request_without_the_header_or_through_a_proxy_is_rejected(
    site: Site, headers: dict[str, str], status: int
) -> None:
    for path in ("/opc/v2/instance/", "/opc/v2/vnics/", "/opc/v2/identity/key.pem"):
        assert site.get(path, headers=headers).status == status


def test_version_1_answers_until_an_instance_disables_it(site: Site) -> None:
    assert site.get("/opc/v1/instance/id", headers={}).text == site.one.id
    assert site.get("/opc/v1/instance/id", "two", headers={}).status == 404
    assert site.get("/opc/v1/instance/id", "two").status == 404
    assert site.get("/opc/v1/identity/key.pem", "two").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(site: Site, method: str) -> None:
    assert site.get("/opc/v2/instance/", method=method).status == 405


def client(site: Site, made: Any) -> Any:
    return oci.core.ComputeClient(
        {"region": "local-1"}, signer=made, service_endpoint=site.api.endpoint,
        retry_strategy=oci.retry.NoneRetryStrategy(), timeout=PATIENCE_S,
    )  # fmt: skip


def test_an_instance_learns_its_host_and_a_limited_capacity_gives_it_back(site: Site) -> None:
    def host_of(name: str) -> str:
        site.addresses[name] = site.address(launched[name])
        return str(site.json("/opc/v2/host/", name)["id"])

    subnet = site.api.subnet(site.api.vcn("10.79.0.0/16"), "10.79.0.0/24")
    more: dict[str, Any] = {"shape": GPU_SHAPE, "shape_config": None}
    launched = {name: site.api.launch(subnet, name, **more).id for name in ("free-1", "free-2")}
    first = {name: host_of(name) for name in launched}
    assert first["free-1"] != first["free-2"]
    assert site.get("/opc/v2/host/id", "free-1").text == first["free-1"]
    assert site.get("/opc/v2/host/rdmaTopologyData", "free-1").status == 404
    site.api.compute.terminate_instance(launched["free-1"])
    site.api.wait(site.api.compute.get_instance, launched["free-1"], "TERMINATED")
    launched["free-3"] = site.api.launch(subnet, "free-3", **more).id
    third = host_of("free-3")
    assert third not in first.values(), "without a limit there is always another one"
    site.api.faults({"shape": GPU_SHAPE, "hosts": 2})
    try:
        site.api.compute.terminate_instance(launched["free-3"])
        site.api.wait(site.api.compute.get_instance, launched["free-3"], "TERMINATED")
        launched["free-4"] = site.api.launch(subnet, "free-4", **more).id
        assert host_of("free-4") == third
    finally:
        site.api.faults()
