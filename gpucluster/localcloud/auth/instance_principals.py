"""Instance principals: the certificate of an instance, and the token that it gets for it.

An instance reads its certificate and key from the metadata service, signs a request to the federation endpoint with
them, and gets a token for a key that it made for the session; with that key it signs its requests to the API. Sources
of the formats: the SDK (`oci.auth`), and certificates and tokens that others published: the subject has the OCIDs in OU
parts, a certificate is valid for two hours and a minute, a token for 20 minutes.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    RSAPublicNumbers,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpucluster.localcloud.auth.signing import SignatureRefused
from gpucluster.paths import write_private

_KEY_BITS = 2048
_CERTIFICATE_LIFE = timedelta(hours=2, minutes=1)
_TOKEN_SECONDS = 1200
_AUTHORITY_LIFE = timedelta(days=36500)
# Of the web server's certificate, which is made at every start of the server.
_SERVER_LIFE = timedelta(days=3650)
_AUTHORITY_NAME = "Identity Intermediate of the local cloud"
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Principal:
    """The OCIDs in a certificate or a token."""

    instance: str
    compartment: str
    tenancy: str

    def units(self) -> tuple[str, ...]:
        """The OU parts of a certificate's subject."""
        return (
            "opc-certtype:instance",
            f"opc-compartment:{self.compartment}",
            f"opc-instance:{self.instance}",
            f"opc-tenant:{self.tenancy}",
        )


@dataclass(frozen=True)
class Leaf:
    """The certificate of an instance and its private key, without a passphrase as on OCI."""

    certificate: str
    key: str
    renew_at: datetime


class PrincipalAuthority:
    """Signs the certificates of instances, and the tokens that they get for these.

    Args:
        key: signs both. `certificate` is its own, which the metadata service shows as the intermediate one.
        clock: seconds since the epoch.
    """

    def __init__(
        self, key: RSAPrivateKey, certificate: x509.Certificate, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._certificate = certificate
        self._clock = clock
        self._leaves: dict[str, tuple[RSAPrivateKey, Leaf]] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, file: Path, clock: Callable[[], float] = time.time) -> PrincipalAuthority:
        """Read the CA's key and certificate; created (0600) where they are missing."""
        if not file.exists():
            write_private(file, _new_authority(datetime.fromtimestamp(clock(), UTC)))
        text = file.read_bytes()
        # A damaged key fails when it signs; to check it takes longer than to read it by far.
        key = load_pem_private_key(text, None, unsafe_skip_rsa_key_validation=True)
        assert isinstance(key, RSAPrivateKey)
        return cls(key, x509.load_pem_x509_certificate(text), clock)

    @property
    def intermediate(self) -> str:
        """The certificate that certificates of instances are signed with, as PEM."""
        return self._certificate.public_bytes(Encoding.PEM).decode("ascii")

    def server_certificate(self, hosts: Sequence[str]) -> str:
        """A key and a certificate for a web server with these names, as PEM."""
        key = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        now = datetime.fromtimestamp(self._clock(), UTC)
        certificate = (
            _certificate(hosts[0], key, self._certificate.subject, now, _SERVER_LIFE)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return _pem(key, certificate)

    def leaf(self, principal: Principal) -> Leaf:
        """The certificate of an instance; a new one when half of its life is over.

        The key stays as long as this process, so that a client that reads the two one after the other gets a pair.
        """
        now = datetime.fromtimestamp(self._clock(), UTC)
        with self._long_names():
            key, leaf = self._leaves.get(principal.instance, (None, None))
            if key is None or leaf is None or now >= leaf.renew_at:
                key = key or generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
                leaf = self._sign(principal, key, now)
                self._leaves[principal.instance] = (key, leaf)
            return leaf

    @contextmanager
    def _long_names(self) -> Iterator[None]:
        """An OCID as the common name is longer than X.509 allows, on OCI as well. The library only warns."""
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield

    def _sign(self, principal: Principal, key: RSAPrivateKey, now: datetime) -> Leaf:
        units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in principal.units()]
        name = x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, principal.instance, _validate=False)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _CERTIFICATE_LIFE)
            .sign(self._key, SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        pem = certificate.public_bytes(Encoding.PEM).decode("ascii")
        return Leaf(pem, private.decode("ascii"), now + _CERTIFICATE_LIFE / 2)

    def check_certificate(self, der_base64: str) -> tuple[x509.Certificate, Principal]:
        """The certificate that a federation request carries, and whose it is.

        Raises:
            SignatureRefused: it was not signed here, has expired, or is none.
        """
        try:
            certificate = x509.load_der_x509_certificate(base64.b64decode(der_base64, validate=True))
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise SignatureRefused(f"the certificate is not one of this cloud: {error}") from error
        now = datetime.fromtimestamp(self._clock(), UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SignatureRefused("the certificate has expired")
        with self._long_names():
            units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        parts = dict(str(unit.value).split(":", 1) for unit in units)
        return certificate, Principal(parts["opc-instance"], parts["opc-compartment"], parts["opc-tenant"])

    def token(self, principal: Principal, certificate: x509.Certificate, session_key: RSAPublicKey) -> str:
        """A token that lets requests be signed with `session_key` as this instance."""
        now = int(self._clock())
        claims = {
            "sub": principal.instance,
            "opc-certtype": "instance",
            "iss": "authService.oracle.com",
            "fprint": certificate_fingerprint(certificate),
            "ptype": "instance",
            "aud": "oci",
            "ttype": "x509",
            "opc-instance": principal.instance,
            "opc-compartment": principal.compartment,
            "opc-tenant": principal.tenancy,
            "tenant": principal.tenancy,
            "iat": now,
            "exp": now + _TOKEN_SECONDS,
            "jti": secrets.token_hex(16),
            "jwk": json.dumps(_jwk(session_key)),
        }
        return self._signed(claims)

    def user_token(self, user: str, tenancy: str, session_key: RSAPublicKey, seconds: int) -> str:
        """A token (UPST) that lets requests be signed with `session_key` as this user, for some seconds."""
        now = int(self._clock())
        return self._signed(
            {
                "sub": user,
                "iss": "authService.oracle.com",
                "ptype": "user",
                "sess_exp": now + seconds,
                "aud": "oci",
                "ttype": "login",
                "tenant": tenancy,
                "iat": now,
                "exp": now + seconds,
                "jti": secrets.token_hex(16),
                "jwk": json.dumps(_jwk(session_key)),
            }
        )

    def _signed(self, claims: Mapping[str, object]) -> str:
        text = f"{_encode({'kid': 'local', 'alg': 'RS256'})}.{_encode(claims)}"
        return f"{text}.{_base64url(self._key.sign(text.encode(), PKCS1v15(), SHA256()))}"

    def read_token(self, token: str) -> tuple[str | None, RSAPublicKey] | None:
        """The instance of a token, or None for a user's, and its session key; None if the token is not from here or
        has expired."""
        text, _, signature = token.rpartition(".")
        try:
            self._key.public_key().verify(_decode(signature), text.encode(), PKCS1v15(), SHA256())
            claims = json.loads(_decode(text.partition(".")[2]))
            if self._clock() > claims["exp"]:
                return None
            instance = None if claims["ptype"] == "user" else str(claims["opc-instance"])
            return instance, _public_key(json.loads(claims["jwk"]))
        except (InvalidSignature, ValueError, KeyError, TypeError):
            return None


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-1 of a certificate as the SDK writes it into the keyId of a federation request."""
    return ":".join(f"{octet:02X}" for octet in certificate.fingerprint(SHA1()))  # noqa: S303 - the format's


def session_key(der_base64: object) -> RSAPublicKey:
    """The public key of a federation request.

    Raises:
        SignatureRefused: it is none.
    """
    try:
        key = load_der_public_key(base64.b64decode(str(der_base64), validate=True))
    except (ValueError, binascii.Error) as error:
        raise SignatureRefused(f"publicKey is not a public key: {error}") from error
    if not isinstance(key, RSAPublicKey) or key.key_size < _KEY_BITS:
        raise SignatureRefused(f"publicKey is not an RSA key of at least {_KEY_BITS} bits")
    return key


def _new_authority(now: datetime) -> str:
    key = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY_NAME)])
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _certificate(_AUTHORITY_NAME, key, issuer, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return _pem(key, certificate)


def _certificate(
    name: str, key: RSAPrivateKey, issuer: x509.Name, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _pem(key: RSAPrivateKey, certificate: x509.Certificate) -> str:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + certificate.public_bytes(Encoding.PEM)).decode("ascii")


def _jwk(key: RSAPublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    return {
        "kid": "session",
        "kty": "RSA",
        "alg": "RS256",
        "use": "sig",
        "n": _base64url(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8, "big")),
        "e": _base64url(numbers.e.to_bytes((numbers.e.bit_length() + 7) // 8, "big")),
    }


def _public_key(jwk: Mapping[str, str]) -> RSAPublicKey:
    exponent, modulus = (int.from_bytes(_decode(jwk[name]), "big") for name in ("e", "n"))
    return RSAPublicNumbers(exponent, modulus).public_key()


def _encode(value: Mapping[str, object]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
