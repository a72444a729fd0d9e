"""The exchange at the local cloud's identity domain, with real signatures, and each refusal in our words.

What this does not prove: the words of OCI's own identity domains.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpucluster.cloud.credentials import jwt
from gpucluster.cloud.credentials.token_exchange import TokenExchange, client_secret
from gpucluster.errors import CloudError, EnvironmentFault
from tests.addresses import free_port
from tests.doubles.ci_system import CLIENT, SECRET, SUBJECT, CiSystem
from tests.localcloud.api_harness import Api

pytestmark = pytest.mark.slow

KEY = generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def exchanged(api: Api, token: str, client: str = CLIENT, secret: str = SECRET) -> str:
    return TokenExchange(api.endpoint, client, secret).session_token(token, PUBLIC)


def test_a_trusted_token_becomes_a_session_of_an_hour(api: Api, ci: CiSystem) -> None:
    ci.trusted_by(api.home)
    claims = jwt.claims(exchanged(api, ci.token()))
    since, until = jwt.times(claims) or (0.0, 0.0)
    assert (claims["tenant"], claims["sub"]) == (api.tenancy, api.config["user"])
    assert until - since == 3600


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # id: (claims, the trust, words of the refusal, words of the hint). Times are seconds from now.
    "expired": ({"exp": -60}, {}, "400 invalid_grant: the subject token has expired", "iss"),
    "not yet": ({"nbf": 600}, {}, "not valid yet", "iss"),
    "another audience": ({"aud": "vault"}, {}, "the claim aud is not one that is trusted", 'aud "vault"'),
    "another issuer": ({"iss": "https://other.example"}, {}, "no active trust", 'iss "https://other.example"'),
    "another repository": ({"sub": "repo:stranger/site:x"}, {}, "no rule lets this subject", "repo:stranger"),
    "no longer active": ({}, {"active": False}, "no active trust", "iss"),
    "another client": ({}, {"oauthClients": ["other-app"]}, "401 unauthorized_client", "oauthClients"),
    "no key of the issuer": ({}, {"publicKeyEndpoint": "http://127.0.0.1:1/jwks"}, "can't be verified", "iss"),
    "without impersonation": ({}, {"allowImpersonation": False}, "act as a service user", SUBJECT),
}


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_the_reason_of_the_domain_is_told_with_what_to_compare(
    row: tuple[dict[str, Any], dict[str, Any], str, str], api: Api, ci: CiSystem
) -> None:
    claims, trust, why, hint = row
    claims = {name: int(time.time()) + value if isinstance(value, int) else value for name, value in claims.items()}
    ci.trusted_by(api.home, **trust)
    with pytest.raises(CloudError) as refused:
        exchanged(api, ci.token(**claims))
    assert why in refused.value.what
    assert hint in refused.value.hint
    assert SECRET not in str(refused.value)


def test_a_token_that_was_changed_is_refused(api: Api, ci: CiSystem) -> None:
    ci.trusted_by(api.home)
    header, _, signature = ci.token().split(".")
    forged = ".".join((header, ci.token(sub=f"{SUBJECT}-other").split(".")[1], signature))
    with pytest.raises(CloudError, match="InvalidSignature"):
        exchanged(api, forged)


@pytest.mark.parametrize(("client", "secret"), [("nobody", SECRET), (CLIENT, "wrong"), (CLIENT, "")])
def test_a_wrong_client_is_refused(client: str, secret: str, api: Api, ci: CiSystem) -> None:
    ci.trusted_by(api.home)
    with pytest.raises(CloudError, match="401 invalid_client") as refused:
        exchanged(api, ci.token(), client, secret)
    assert "GPUCLUSTER_OIDC_CLIENT_SECRET" in refused.value.hint


def test_a_home_without_trusts_trusts_no_client(tmp_path: Path, api: Api, ci: CiSystem) -> None:
    (api.home / "credentials" / "identity_propagation_trusts.json").unlink()
    with pytest.raises(CloudError, match="invalid_client"):
        exchanged(api, ci.token())


def test_what_is_no_domain_is_named() -> None:
    nothing = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(CloudError, match="can't be reached: Connection refused") as refused:
        TokenExchange(nothing, CLIENT, SECRET).session_token("x", PUBLIC)
    assert refused.value.where == f"{nothing}/oauth2/v1/token"


def test_the_secret_must_be_set() -> None:
    with pytest.raises(EnvironmentFault, match="GPUCLUSTER_OIDC_CLIENT_SECRET is not set"):
        client_secret("")
