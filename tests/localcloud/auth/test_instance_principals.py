"""Instance principals: certificates, tokens, and who gets none. With the real SDK where it is a client."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import oci
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpucluster.localcloud.auth.instance_principals import Principal, PrincipalAuthority
from gpucluster.localcloud.auth.signing import SignatureRefused
from tests.localcloud.api_harness import refused
from tests.localcloud.metadata.test_service import Site, client, site_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


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
    site.addresses["gone"] = site.address(gone.id)
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
