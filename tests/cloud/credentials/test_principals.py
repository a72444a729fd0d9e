"""Identities of instances, resources and pods: the SDK's own signers, and what is said where something is missing.

An instance's is tried against the local cloud: its metadata service, its federation endpoint, its policies. Those of
other resources are only made from their variables here, and a pod's not at all: OKE's proxy for tokens has no double.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.credentials.principals import Principal
from gpucluster.errors import CloudError, EnvironmentFault
from tests.addresses import free_port
from tests.doubles.ci_system import CiSystem
from tests.localcloud.metadata.test_service import Site, site_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


def permit(site: Site, ocid: str, statement: str) -> None:
    models, name = oci.identity.models, f"runners{secrets.token_hex(3)}"
    group = models.CreateDynamicGroupDetails(
        compartment_id=site.api.tenancy, name=name, description=name, matching_rule=f"instance.id = '{ocid}'"
    )
    site.api.identity.create_dynamic_group(group)
    policy = models.CreatePolicyDetails(
        compartment_id=site.api.tenancy, name=name, description=name, statements=[statement.replace("RUNNERS", name)]
    )
    site.api.identity.create_policy(policy)


def test_an_instance_signs_as_itself_and_may_do_what_policies_say(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.served_to("one") as metadata:
        monkeypatch.setenv("OCI_METADATA_BASE_URL", metadata)
        runner = Principal("instance_principal", {"OCI_METADATA_BASE_URL": metadata}, site.api.endpoint)
        assert runner.terraform_env("local-1") == {"OCI_AUTH": "InstancePrincipal", "OCI_REGION": "local-1"}
        assert runner.tenancy == site.api.tenancy
        access = CloudAccess(runner.sdk_config("local-1"), site.api.endpoint, site.api.tenancy, signer=runner.signer)
        compute = access.client("core", "ComputeClient")
        with pytest.raises(oci.exceptions.ServiceError, match="NotAuthorizedOrNotFound"):
            compute.list_instances(site.api.tenancy)
        permit(site, site.one.id, "Allow dynamic-group RUNNERS to read instances in tenancy")
        assert {each.id for each in compute.list_instances(site.api.tenancy).data} == {site.one.id, site.two.id}
        assert access.client("core", "VirtualNetworkClient").base_client.signer is compute.base_client.signer


def test_a_machine_that_is_no_instance_is_told_so_at_once() -> None:
    nothing = f"http://127.0.0.1:{free_port()}/opc/v2"
    with pytest.raises(EnvironmentFault, match="does not answer: Connection refused") as refused:
        Principal("instance_principal", {"OCI_METADATA_BASE_URL": nothing}).signer()
    assert refused.value.exit_code == 5
    assert "NO_PROXY" in refused.value.hint


def test_a_metadata_service_that_refuses_is_told(ci: CiSystem) -> None:
    with pytest.raises(EnvironmentFault, match="answered 403"):
        Principal("instance_principal", {"OCI_METADATA_BASE_URL": ci.issuer}).terraform_env("local-1")


def test_an_instance_that_is_gone_gets_no_token(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.served_to("two") as metadata:
        monkeypatch.setenv("OCI_METADATA_BASE_URL", metadata)
        runner = Principal("instance_principal", {"OCI_METADATA_BASE_URL": metadata}, f"{site.api.endpoint}/nowhere")
        with pytest.raises(CloudError, match="getting a token as instance principal: the cloud answered 401"):
            runner.signer()


def test_a_resource_signs_with_what_its_variables_have(ci: CiSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    key = generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    environ = {
        "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
        "OCI_RESOURCE_PRINCIPAL_RPST": ci.token(res_tenant="ocid1.tenancy.oc1..t"),
        "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM": pem,
        "OCI_RESOURCE_PRINCIPAL_REGION": "us-ashburn-1",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    build_run = Principal("resource_principal", environ)
    assert build_run.tenancy == "ocid1.tenancy.oc1..t"
    assert build_run.terraform_env("us-ashburn-1")["OCI_AUTH"] == "ResourcePrincipal"
    client = CloudAccess(build_run.sdk_config("us-ashburn-1"), None, "c", signer=build_run.signer).client(
        "core", "ComputeClient"
    )
    assert client.base_client.signer is build_run.signer()
    assert "iaas.us-ashburn-1" in client.base_client.endpoint


ROWS: dict[str, tuple[Any, dict[str, str], str]] = {
    "no resource": ("resource_principal", {}, "not a resource principal: OCI_RESOURCE_PRINCIPAL_VERSION is not set"),
    "half a resource": (
        "resource_principal",
        {"OCI_RESOURCE_PRINCIPAL_VERSION": "2.2", "OCI_RESOURCE_PRINCIPAL_RPST": "x"},
        "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM, OCI_RESOURCE_PRINCIPAL_REGION is not set",
    ),
    "no pod": ("workload_identity", {}, "KUBERNETES_SERVICE_HOST is not set"),
    "a pod without a token": (
        "workload_identity",
        {
            "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2", "OCI_RESOURCE_PRINCIPAL_REGION": "us-ashburn-1",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1", "OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH": "/nowhere/ca.crt",
        },
        "can't be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_is_missing_is_named(row: tuple[Any, dict[str, str], str]) -> None:
    method, environ, words = row
    with pytest.raises(EnvironmentFault, match=words) as refused:
        Principal(method, environ).terraform_env("us-ashburn-1")
    assert method in refused.value.hint or "automount" in refused.value.hint


def test_a_pod_tells_terraform_where_its_api_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucluster.cloud.credentials.principals._SERVICE_ACCOUNT", tmp_path)
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("x")
    environ = ROWS["a pod without a token"][1] | {"OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH": ""}
    assert Principal("workload_identity", environ).terraform_env("us-ashburn-1") == {
        "OCI_AUTH": "OKEWorkloadIdentity",
        "OCI_REGION": "us-ashburn-1",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }
