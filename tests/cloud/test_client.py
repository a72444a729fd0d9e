"""Clients of the SDK, which send nothing here."""

from __future__ import annotations

from pathlib import Path

import oci
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gpucluster.cloud.client import CloudAccess


def new_key() -> bytes:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_key(file: Path) -> None:
    file.write_bytes(new_key())


def access(tmp_path: Path, **more: str) -> CloudAccess:
    config = {
        "user": "ocid1.user.oc1..aaaa",
        "tenancy": "ocid1.tenancy.oc1..aaaa",
        "fingerprint": ":".join(["00"] * 16),
        "key_file": str(tmp_path / "key.pem"),
        "region": "us-ashburn-1",
    }
    return CloudAccess({**config, **more}, None, "ocid1.compartment.oc1..aaaa")


def test_the_private_key_is_read_once_for_all_clients(tmp_path: Path) -> None:
    write_key(tmp_path / "key.pem")
    first = access(tmp_path).client("core", "ComputeClient")
    second = access(tmp_path).client("core", "VirtualNetworkClient", timeout=1)
    assert second.base_client.signer is first.base_client.signer


def test_another_key_or_another_user_has_another_signer(tmp_path: Path) -> None:
    write_key(tmp_path / "key.pem")
    first = access(tmp_path).client("core", "ComputeClient").base_client.signer
    other = access(tmp_path, user="ocid1.user.oc1..bbbb").client("core", "ComputeClient").base_client.signer
    write_key(tmp_path / "new.pem")
    (tmp_path / "new.pem").replace(tmp_path / "key.pem")
    renewed = access(tmp_path).client("core", "ComputeClient").base_client.signer
    assert len({id(each) for each in (first, other, renewed)}) == 3
    assert renewed.private_key.private_numbers() != first.private_key.private_numbers()
    (tmp_path / "key.pem").unlink()
    with pytest.raises(Exception, match=r"key\.pem"):
        access(tmp_path).client("core", "ComputeClient")


#: Those that commands make, with the SDK's own retries.
CLIENTS = (
    ("bastion", "BastionClient"),
    ("container_engine", "ContainerEngineClient"),
    ("core", "ComputeClient"),
    ("core", "ComputeManagementClient"),
    ("core", "VirtualNetworkClient"),
    ("file_storage", "FileStorageClient"),
    ("identity", "IdentityClient"),
    ("limits", "LimitsClient"),
    ("work_requests", "WorkRequestClient"),
)


@pytest.mark.parametrize(("service", "name"), CLIENTS, ids=[name for _, name in CLIENTS])
def test_refusals_of_one_service_do_not_end_calls_to_another(tmp_path: Path, service: str, name: str) -> None:
    """The SDK's circuit breaker is one for all clients of a process."""
    write_key(tmp_path / "key.pem")
    client = access(tmp_path).client(service, name)
    assert not isinstance(client.base_client.circuit_breaker_strategy, oci.circuit_breaker.CircuitBreakerStrategy)


def test_the_trap_is_there(tmp_path: Path) -> None:
    """Clients that are made without gpucluster."""
    write_key(tmp_path / "key.pem")
    config = access(tmp_path).config
    first = oci.identity.IdentityClient(config).base_client
    second = oci.limits.LimitsClient(config).base_client
    assert isinstance(first.circuit_breaker_strategy, oci.circuit_breaker.CircuitBreakerStrategy)
    assert first.circuit_breaker_strategy is second.circuit_breaker_strategy
