"""The certificate authority of a cluster, and what it signs. Pure, but for the clock and random keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

_DAYS = 5 * 365
_SERVICE_ACCOUNT_BITS = 2048
_EXTENDED = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}

# Python from 3.13 on accepts no CA without this.
_SIGNS = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


def new_authority(name: str) -> tuple[str, str]:
    """A new certificate authority for one cluster: certificate and key in PEM format."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM).decode(), _pem(key)


def issue(
    authority: tuple[str, str], name: str, *, groups: Sequence[str] = (), use: str, hosts: Sequence[str] = ()
) -> tuple[str, str]:
    """A certificate and its key in PEM format.

    Args:
        authority: certificate and key of the cluster's CA.
        name: of the user, or of the server; `groups` are the user's.
        use: "server" or "client".
        hosts: names and addresses of the server.
    """
    ca = x509.load_pem_x509_certificate(authority[0].encode())
    ca_key = load_pem_private_key(authority[1].encode(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            *(x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, name),
        ]
    )
    builder = _builder(subject, ca.subject, key.public_key()).add_extension(
        x509.ExtendedKeyUsage([_EXTENDED[use]]), critical=False
    )
    key_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = builder.add_extension(key_identifier, critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(ca_key, SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key)


def new_service_account_key() -> str:
    """A new key in PEM format, with which the tokens of service accounts are signed."""
    return _pem(rsa.generate_private_key(public_exponent=65537, key_size=_SERVICE_ACCOUNT_BITS))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    form = PrivateFormat.PKCS8 if isinstance(key, ec.EllipticCurvePrivateKey) else PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()
