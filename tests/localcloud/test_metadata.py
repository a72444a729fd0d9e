"""The metadata service and instance principals, with the real SDK where it is a client.

Without containers: a test names the address that a request comes from. The way to it: test_metadata_path.py.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import oci
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpucluster.localcloud.auth.instance_principals import Principal, PrincipalAuthority
from gpucluster.localcloud.auth.signing import SignatureRefused
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.metadata.documents import selected
from gpucluster.localcloud.metadata.service import MetadataService
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for

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
        self.addresses = {name: self._address(found.id) for name, found in (("one", self.one), ("two", self.two))}

    def _address(self, ocid: str) -> str:
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("cloud")
    with running(home) as api:
        made = Site(home, api)
        yield made
        made.cloud.close()


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


# --- the identity of an instance -----


def test_the_certificate_names_the_instance_and_belongs_to_the_key(site: Site) -> None:
    leaf = x509.load_pem_x509_certificate(site.get("/opc/v2/identity/cert.pem").text.encode())
    key = load_pem_private_key(site.get("/opc/v2/identity/key.pem").text.encode(), None)
    assert leaf.public_key() == key.public_key()
    above = x509.load_pem_x509_certificate(site.get("/opc/v2/identity/intermediate.pem").text.encode())
    leaf.verify_directly_issued_by(above)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the common name is longer than X.509 allows, as on OCI
        subject = leaf.subject.rfc4514_string()
    assert {f"opc-instance:{site.one.id}", f"opc-tenant:{site.api.tenancy}"} <= set(re.split("[=,]", subject))
    assert site.get("/opc/v2/identity/key.pem", "two").text != site.get("/opc/v2/identity/key.pem").text


def signer(site: Site, who: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The SDK's own, as it would be made on the instance."""
    with site.served_to(who) as base:
        monkeypatch.setenv("OCI_METADATA_BASE_URL", base)
        return oci.auth.signers.InstancePrincipalsSecurityTokenSigner(
            federation_endpoint=f"{site.api.endpoint}/v1/x509", retry_strategy=oci.retry.NoneRetryStrategy()
        )


def client(site: Site, made: Any) -> Any:
    return oci.core.ComputeClient(
        {"region": "local-1"}, signer=made, service_endpoint=site.api.endpoint,
        retry_strategy=oci.retry.NoneRetryStrategy(),
    )  # fmt: skip


def test_the_sdk_signs_as_the_instance_and_may_do_what_policies_permit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = signer(site, "one", monkeypatch)
    assert (made.tenancy_id, made.region) == (site.api.tenancy, "local-1")
    with refused(404, "NotAuthorizedOrNotFound"):
        client(site, made).get_instance(site.one.id)
    models, identity = oci.identity.models, site.api.identity
    group = identity.create_dynamic_group(
        models.CreateDynamicGroupDetails(
            compartment_id=site.api.tenancy, name="one", description="-", matching_rule=f"instance.id = '{site.one.id}'"
        )
    ).data
    policy = identity.create_policy(
        models.CreatePolicyDetails(
            compartment_id=site.api.tenancy, name="one", description="-",
            statements=["Allow dynamic-group one to read instances in tenancy"],
        )
    ).data  # fmt: skip
    assert client(site, made).get_instance(site.two.id).data.id == site.two.id
    with refused(404, "NotAuthorizedOrNotFound"):
        client(site, made).terminate_instance(site.two.id)
    with refused(404, "NotAuthorizedOrNotFound"):
        client(site, signer(site, "two", monkeypatch)).get_instance(site.two.id)
    identity.delete_policy(policy.id)
    identity.delete_dynamic_group(group.id)
    claims = jwt.decode(made.federation_client.get_security_token(), options={"verify_signature": False})
    assert (claims["sub"], claims["opc-tenant"], claims["ptype"]) == (site.one.id, site.api.tenancy, "instance")
    assert claims["exp"] - claims["iat"] == 1200


def test_a_terminated_instance_gets_no_token_and_has_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    subnet = site.api.subnet(site.api.vcn("10.78.0.0/16", "gone"), "10.78.0.0/24")
    gone = site.api.launch(subnet, "gone")
    site.addresses["gone"] = site._address(gone.id)
    made = signer(site, "gone", monkeypatch)
    site.api.compute.terminate_instance(gone.id)
    site.api.wait(site.api.compute.get_instance, gone.id, "TERMINATED")
    federation = made.federation_client
    for retriever in (federation.leaf_certificate_retriever, *federation.intermediate_certificate_retrievers):
        retriever.refresh = lambda: None  # its address belongs to no instance now; it keeps what it has read
    with refused(401, "NotAuthenticated"):
        client(site, made).get_instance(gone.id)
    with refused(401, "NotAuthenticated"):
        made.refresh_security_token()
    assert site.get("/opc/v2/instance/id", "gone").status == 404


def test_a_certificate_of_another_cloud_gets_no_token(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = PrincipalAuthority.open(tmp_path / "authority.pem")
    monkeypatch.setattr(site.service, "_authority", foreign)
    with refused(401, "NotAuthenticated"):
        signer(site, "one", monkeypatch)


# --- the CA -----

ONE = Principal("ocid1.instance.local..one", "ocid1.compartment.local..c", "ocid1.tenancy.local..t")


class WallClock:
    """A clock that a test sets, in seconds since the epoch."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_and_a_certificate_expire(tmp_path: Path) -> None:
    clock = WallClock()
    authority = PrincipalAuthority.open(tmp_path / "authority.pem", clock)
    assert (tmp_path / "authority.pem").stat().st_mode & 0o777 == 0o600
    leaf = authority.leaf(ONE)
    assert authority.leaf(ONE) == leaf
    encoded = "".join(leaf.certificate.splitlines()[1:-1])
    certificate, principal = authority.check_certificate(encoded)
    assert principal == ONE
    public = load_pem_private_key(leaf.key.encode(), None).public_key()
    token = authority.token(ONE, certificate, public)  # type: ignore[arg-type]
    assert authority.read_token(token) == (ONE.instance, public)
    again = PrincipalAuthority.open(tmp_path / "authority.pem", clock)
    assert again.read_token(token) == (ONE.instance, public), "after a restart of the server"
    head, claims, signature = token.split(".")
    for changed in (f"{head}.{claims}.{signature[:-4]}AAAA", f"{head}.{claims}", "", "x.y.z", token + "A" * 8):
        assert authority.read_token(changed) is None
    assert PrincipalAuthority.open(tmp_path / "other.pem", clock).read_token(token) is None
    clock.now += 1201
    assert authority.read_token(token) is None
    clock.now += 2400
    renewed = authority.leaf(ONE)
    assert renewed == leaf, "half of two hours is not over"
    clock.now += 100
    renewed = authority.leaf(ONE)
    assert renewed.certificate != leaf.certificate
    assert renewed.key == leaf.key, "a client that has just read the key has the pair"
    clock.now += 7300
    with pytest.raises(SignatureRefused, match="expired"):
        authority.check_certificate(encoded)
