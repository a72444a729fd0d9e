"""The CA of a cluster and what it signs, as openssl reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpucluster.localcloud.kubernetes import certificates


@pytest.fixture(scope="module")
def authority() -> tuple[str, str]:
    return certificates.new_authority("oke-ca")


def verified(folder: Path, authority: str, certificate: str, purpose: str, *options: str) -> bool:
    """Whether openssl takes the certificate for this purpose."""
    (folder / "ca.crt").write_text(authority)
    (folder / "one.crt").write_text(certificate)
    command = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "-purpose", purpose, *options, "one.crt"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def test_a_certificate_is_for_one_use(tmp_path: Path, authority: tuple[str, str]) -> None:
    client, _ = certificates.issue(authority, "kube-apiserver", groups=("system:masters",), use="client")
    server, _ = certificates.issue(authority, "kube-apiserver", use="server", hosts=("kubernetes",))
    assert verified(tmp_path, authority[0], client, "sslclient")
    assert not verified(tmp_path, authority[0], client, "sslserver")
    assert verified(tmp_path, authority[0], server, "sslserver")
    assert not verified(tmp_path, authority[0], server, "sslclient")


def test_a_server_has_its_names_and_addresses(tmp_path: Path, authority: tuple[str, str]) -> None:
    server, _ = certificates.issue(authority, "kube-apiserver", use="server", hosts=("kubernetes", "10.96.0.1"))
    assert verified(tmp_path, authority[0], server, "sslserver", "-verify_hostname", "kubernetes")
    assert verified(tmp_path, authority[0], server, "sslserver", "-verify_ip", "10.96.0.1")
    assert not verified(tmp_path, authority[0], server, "sslserver", "-verify_hostname", "other")


def test_another_ca_is_not_trusted(tmp_path: Path, authority: tuple[str, str]) -> None:
    other = certificates.new_authority("oke-ca")
    certificate, _ = certificates.issue(other, "admin", use="client")
    assert not verified(tmp_path, authority[0], certificate, "sslclient")


def test_the_user_is_the_name_and_the_organizations_are_its_groups(authority: tuple[str, str]) -> None:
    certificate, _ = certificates.issue(authority, "oke-admin", groups=("system:masters", "ops"), use="client")
    subject = x509.load_pem_x509_certificate(certificate.encode()).subject
    values = [(item.oid, item.value) for item in subject]
    assert values == [
        (x509.NameOID.ORGANIZATION_NAME, "system:masters"),
        (x509.NameOID.ORGANIZATION_NAME, "ops"),
        (x509.NameOID.COMMON_NAME, "oke-admin"),
    ]


def test_each_key_belongs_to_its_certificate(authority: tuple[str, str]) -> None:
    for certificate, key in (authority, certificates.issue(authority, "admin", use="client")):
        public = load_pem_private_key(key.encode(), None).public_key()
        assert x509.load_pem_x509_certificate(certificate.encode()).public_key() == public


def test_the_key_of_service_accounts_is_one_that_kubernetes_reads() -> None:
    # client-go's keyutil takes RSA keys in this form.
    key = certificates.new_service_account_key()
    assert key.startswith("-----BEGIN RSA PRIVATE KEY-----")
    assert key != certificates.new_service_account_key()
