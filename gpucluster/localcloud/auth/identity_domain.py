"""The token endpoint of an identity domain: an ID token of a CI system in, a session of a user out (`PATH`).

The trust is a file of the home, `FILE`, with OAuth clients and their secrets, and with the attributes that Oracle's
IdentityPropagationTrust has:

    {"clients": {"CLIENT_ID": "SECRET"},
     "trusts": [{"name": "ci", "type": "JWT", "active": true, "issuer": "https://token.actions.githubusercontent.com",
                 "publicKeyEndpoint": "https://.../jwks", "oauthClients": ["CLIENT_ID"], "clockSkewSeconds": 30,
                 "clientClaimName": "aud", "clientClaimValues": ["oci"],
                 "allowImpersonation": true, "impersonationServiceUsers": [{"rule": "sub sw repo:example/site:"}]}]}

The user of the session is the one user of the local cloud, who may do everything. Sources: Oracle's page "Exchanging a
JSON Web Token for a UPST", the SDK's TokenExchangeSigner for the request, RFC 6749 (5.2) and RFC 8693 for refusals.

What this does not prove: the words of OCI's own refusals, which its page does not list, and its cache of public keys.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from gpucluster.localcloud.auth.instance_principals import PrincipalAuthority, session_key
from gpucluster.localcloud.auth.signing import SignatureRefused
from gpucluster.localcloud.state.tenancy import Tenancy

PATH = "/oauth2/v1/token"
FILE = "identity_propagation_trusts.json"  # in the home's folder of credentials
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_UPST = "urn:oci:token-type:oci-upst"
_SECONDS = 3600  # a session's token lasts an hour (Oracle's page)
_TIMEOUT = 25.0  # seconds for the keys of an issuer; a client waits a little longer for the answer
_OPERATORS = {"eq": str.__eq__, "co": str.__contains__, "sw": str.startswith}


class ExchangeRefused(Exception):
    """Why a token is not given. `code` is the error of OAuth."""

    def __init__(self, code: str, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class IdentityDomain:
    """The domain with its clients and trusts."""

    clients: Mapping[str, str]
    trusts: tuple[Mapping[str, Any], ...]
    tenancy: Tenancy
    authority: PrincipalAuthority

    @classmethod
    def of(cls, home: Path, tenancy: Tenancy, authority: PrincipalAuthority) -> IdentityDomain:
        """The domain of a home. It trusts no client where there is no file."""
        try:
            read = json.loads((home / "credentials" / FILE).read_text())
        except FileNotFoundError:
            read = {}
        return cls(read.get("clients", {}), tuple(read.get("trusts", ())), tenancy, authority)

    def exchange(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """A session token.

        Args:
            headers: names in lower case.
            now: seconds since the epoch.

        Raises:
            ExchangeRefused: the client, the request or the ID token is not trusted.
        """
        client = self._client(headers.get("authorization", ""))
        fields = dict(parse_qsl(body.decode("utf-8", errors="replace")))
        if fields.get("grant_type") != _GRANT:
            raise ExchangeRefused("unsupported_grant_type", f"grant_type must be {_GRANT}")
        if fields.get("requested_token_type") != _UPST or fields.get("subject_token_type") != "jwt":
            raise ExchangeRefused("invalid_request", f"only {_UPST} for a jwt is supported")
        try:
            key = session_key(fields.get("public_key", ""))
        except SignatureRefused as error:
            raise ExchangeRefused("invalid_request", str(error)) from error
        self._check(fields.get("subject_token", ""), client, now)
        user = self.tenancy.users[0].user
        return self.authority.user_token(user, self.tenancy.tenancy, key, _SECONDS)

    def _client(self, authorization: str) -> str:
        scheme, _, encoded = authorization.partition(" ")
        try:
            client, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            client, secret = "", ""
        known = self.clients.get(client, "")
        if scheme.lower() != "basic" or not known or not hmac.compare_digest(secret.encode(), known.encode()):
            raise ExchangeRefused("invalid_client", "Client authentication failed.", 401)
        return client

    def _check(self, token: str, client: str, now: float) -> None:
        """Find the trust of a token's issuer, and apply it."""
        header, claims = _parts(token)
        trust = next((each for each in self.trusts if each["issuer"] == claims.get("iss") and each["active"]), None)
        if trust is None:
            raise ExchangeRefused("invalid_grant", f"no active trust has the issuer {claims.get('iss')}")
        if client not in trust["oauthClients"]:
            raise ExchangeRefused("unauthorized_client", f"the trust {trust['name']} does not name this client", 401)
        _check_signature(token, header, str(trust["publicKeyEndpoint"]))
        skew = float(trust.get("clockSkewSeconds", 0))
        if now > float(claims.get("exp", 0)) + skew:
            raise ExchangeRefused("invalid_grant", "the subject token has expired")
        if now < float(claims.get("nbf", 0)) - skew:
            raise ExchangeRefused("invalid_grant", "the subject token is not valid yet")
        given = claims.get(trust["clientClaimName"])
        if not set(given if isinstance(given, list) else [given]) & set(trust["clientClaimValues"]):
            raise ExchangeRefused("invalid_grant", f"the claim {trust['clientClaimName']} is not one that is trusted")
        rules = [str(each["rule"]) for each in trust.get("impersonationServiceUsers", ())]
        if not trust.get("allowImpersonation") or not any(_holds(rule, claims) for rule in rules):
            raise ExchangeRefused("invalid_grant", "no rule lets this subject act as a service user")


def _parts(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        header, claims, _signature = token.split(".")
        read = [json.loads(_decode(part)) for part in (header, claims)]
        return dict(read[0]), dict(read[1])
    except (ValueError, TypeError) as error:
        raise ExchangeRefused("invalid_request", "the subject token is not a JSON Web Token") from error


def _check_signature(token: str, header: Mapping[str, Any], endpoint: str) -> None:
    """Check it with the issuer's public key, at the place that the trust names."""
    if header.get("alg") != "RS256":
        raise ExchangeRefused("invalid_grant", f"the algorithm {header.get('alg')} is not supported")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(endpoint, timeout=_TIMEOUT) as answer:
            keys = json.loads(answer.read())["keys"]
        key = next(each for each in keys if each["kid"] == header.get("kid"))
        exponent, modulus = (int.from_bytes(_decode(key[name]), "big") for name in ("e", "n"))
        text, _, signature = token.rpartition(".")
        public = RSAPublicNumbers(exponent, modulus).public_key()
        public.verify(_decode(signature), text.encode(), PKCS1v15(), SHA256())
    except (OSError, ValueError, KeyError, TypeError, StopIteration, InvalidSignature) as error:
        raise ExchangeRefused("invalid_grant", f"the signature can't be verified: {type(error).__name__}") from error


def _holds(rule: str, claims: Mapping[str, Any]) -> bool:
    """Whether a rule such as `sub eq ci` holds."""
    name, operator, value = [*rule.split(" ", 2), "", ""][:3]
    compare = _OPERATORS.get(operator)
    return compare is not None and name in claims and bool(compare(str(claims[name]), value))


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
