"""The identity domain of the local cloud: what a request must be. Trusts and refusals: tests/cloud/credentials."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpucluster.localcloud.auth.identity_domain import ExchangeRefused, IdentityDomain
from gpucluster.localcloud.server.home import open_authority
from gpucluster.localcloud.state.tenancy import ApiUser, Tenancy
from tests.doubles.ci_system import CLIENT, SECRET, CiSystem, ci_system

NOW = 1_790_000_000.0
KEY = generate_private_key(public_exponent=65537, key_size=2048)


def der(key: RSAPrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


@pytest.fixture(scope="module")
def ci() -> Iterator[CiSystem]:
    with ci_system() as system:
        yield system


@pytest.fixture
def domain(tmp_path: Path, ci: CiSystem) -> IdentityDomain:
    ci.trusted_by(tmp_path)
    user = ApiUser("local", "The operator", "ocid1.user.local..a", KEY.public_key())
    authority = open_authority(tmp_path)
    return IdentityDomain.of(
        tmp_path, Tenancy("ocid1.tenancy.local..a", (user,), tmp_path, authority.read_token), authority
    )


def exchanged(domain: IdentityDomain, token: str, secret: str = SECRET, **changes: str) -> str:
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": token,
        "requested_token_type": "urn:oci:token-type:oci-upst", "subject_token_type": "jwt", "public_key": der(KEY),
    }  # fmt: skip
    basic = base64.b64encode(f"{CLIENT}:{secret}".encode()).decode()
    return domain.exchange({"authorization": f"Basic {basic}"}, urlencode(fields | changes).encode(), NOW)


def test_a_session_is_of_the_user_and_signs_with_the_key(domain: IdentityDomain, ci: CiSystem) -> None:
    token = exchanged(domain, ci.token(exp=NOW + 60))
    assert domain.tenancy.key(f"ST${token}") == KEY.public_key()
    assert domain.tenancy.instance(f"ST${token}") is None, "a user's, who may do everything"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
        ({"requested_token_type": "urn:oci:token-type:oci-rpst"}, "invalid_request"),
        ({"subject_token_type": "saml"}, "invalid_request"),
        ({"public_key": "AAAA"}, "invalid_request"),
        ({"public_key": der(generate_private_key(public_exponent=65537, key_size=1024))}, "invalid_request"),
        ({"subject_token": "a.b.c"}, "invalid_request"),
        ({"subject_token": "text"}, "invalid_request"),
    ],
)
def test_a_request_of_another_form_is_refused(
    changes: dict[str, str], code: str, domain: IdentityDomain, ci: CiSystem
) -> None:
    with pytest.raises(ExchangeRefused) as refused:
        exchanged(domain, ci.token(exp=NOW + 60), **changes)
    assert (refused.value.code, refused.value.status) == (code, 400)


def test_without_basic_credentials_nothing_is_looked_at(domain: IdentityDomain) -> None:
    for header in ("", "Basic !!", "Bearer abc", "Basic " + base64.b64encode(b"\xff:x").decode()):
        with pytest.raises(ExchangeRefused) as refused:
            domain.exchange({"authorization": header} if header else {}, b"", NOW)
        assert (refused.value.code, refused.value.status) == ("invalid_client", 401)
