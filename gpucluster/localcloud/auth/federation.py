"""The federation endpoint: the certificate of an instance in, a token for its session key out (`POST /v1/x509`)."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gpucluster.localcloud.auth.instance_principals import PrincipalAuthority, certificate_fingerprint, session_key
from gpucluster.localcloud.auth.signing import SignatureRefused, verify
from gpucluster.localcloud.state.wire import read_json

#: The path that the SDK asks (oci.auth.signers: federation_endpoint).
PATH = "/v1/x509"


def exchange(
    authority: PrincipalAuthority, *, target: str, headers: Mapping[str, str], body: bytes, now: float
) -> tuple[str, str]:
    """The OCID of the instance that asks, and its token.

    Args:
        target: path and query as in the request line.
        headers: names in lower case.
        now: seconds since the epoch.

    Raises:
        SignatureRefused: the certificate is not one of this cloud, or the request was not signed with its key.
    """
    try:
        request = read_json(body)
        encoded = str(request["certificate"])
        public_key = request["publicKey"]
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureRefused(f"the request has no certificate and publicKey: {error}") from error
    certificate, principal = authority.check_certificate(encoded)
    own = certificate.public_key()
    expected = f"{principal.tenancy}/fed-x509/{certificate_fingerprint(certificate)}"

    def key_of(key_id: str) -> RSAPublicKey | None:
        return own if key_id == expected and isinstance(own, RSAPublicKey) else None

    verify(
        method="POST", target=target, headers=headers, body=body, key_of=key_of, now=now, host_signed=False
    )  # fmt: skip
    return principal.instance, authority.token(principal, certificate, session_key(public_key))
