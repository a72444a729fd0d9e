"""Clients of the SDK, which send nothing here."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gpucluster.cloud.client import Access


def access(tmp_path: Path) -> Access:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "key.pem"
    file.write_bytes(key)
    config = {
        "user": "ocid1.user.oc1..aaaa",
        "tenancy": "ocid1.tenancy.oc1..aaaa",
        "fingerprint": ":".join(["00"] * 16),
        "key_file": str(file),
        "region": "us-ashburn-1",
    }
    return Access(config, None, "ocid1.compartment.oc1..aaaa")


def test_the_private_key_is_read_once_for_all_clients(tmp_path: Path) -> None:
    used = access(tmp_path)
    first = used.client("core", "ComputeClient")
    (tmp_path / "key.pem").unlink()
    second = used.client("core", "VirtualNetworkClient", timeout=1)
    assert second.base_client.signer is first.base_client.signer
