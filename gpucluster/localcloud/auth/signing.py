"""Verification of the HTTP signatures of OCI's API.

Signed headers (observed from the SDK and the Terraform provider): `date (request-target) host`, and for POST, PUT and
PATCH also `content-length content-type x-content-sha256`; RSA-SHA256 over `name: value` lines.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

MAX_SKEW = 300.0  # seconds between a request's date and the server's clock (docs: Request Signatures)
_BODY_HEADERS = ("content-length", "content-type", "x-content-sha256")
_FIELD = re.compile(r'(\w+)="([^"]*)"')


class SignatureRefused(Exception):
    """Why a signature was rejected. The reason is for the log; the client does not get it, as on OCI."""


def verify(
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    key_of: Callable[[str], RSAPublicKey | None],
    now: float,
    host_signed: bool = True,
) -> str:
    """Return the keyId that signed this request.

    Args:
        target: path and query as in the request line.
        headers: names in lower case.
        key_of: the key of a keyId, `tenancy/user/fingerprint`; None if there is none.
        now: seconds since the epoch.
        host_signed: the host must be signed: everywhere but at the federation endpoint, where the SDK leaves it out.

    Raises:
        SignatureRefused: the signature is missing, too old, incomplete, or not by a known key.
    """
    fields = _authorization(headers)
    key = key_of(fields["keyId"])
    if key is None:
        raise SignatureRefused("unknown keyId")
    signed = fields["headers"].split()
    generic = ["(request-target)", *(["host"] if host_signed else [])]
    required = [*generic, *(_BODY_HEADERS if method in ("POST", "PUT", "PATCH") else ())]
    missing = [name for name in required if name not in signed]
    if missing:
        raise SignatureRefused(f"not signed: {' '.join(missing)}")
    _check_date(signed, headers, now)
    if "x-content-sha256" in signed:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if headers.get("x-content-sha256") != digest:
            raise SignatureRefused("x-content-sha256 is not the digest of the body")
    lines = []
    for name in signed:
        value = f"{method.lower()} {target}" if name == "(request-target)" else headers.get(name)
        if value is None:
            raise SignatureRefused(f"the signed header {name} is missing")
        lines.append(f"{name}: {value}")
    try:
        signature = base64.b64decode(fields["signature"], validate=True)
        key.verify(signature, "\n".join(lines).encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, binascii.Error) as error:
        raise SignatureRefused("the signature does not match") from error
    return fields["keyId"]


def _authorization(headers: Mapping[str, str]) -> dict[str, str]:
    value = headers.get("authorization", "")
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != "signature":
        raise SignatureRefused("no Authorization: Signature header")
    fields = dict(_FIELD.findall(rest))
    missing = [name for name in ("keyId", "headers", "signature", "algorithm") if name not in fields]
    if missing:
        raise SignatureRefused(f"the Authorization header has no {' '.join(missing)}")
    if fields["algorithm"] != "rsa-sha256" or fields.get("version", "1") != "1":
        raise SignatureRefused("only version 1 with rsa-sha256 is supported")
    return fields


def _check_date(signed: list[str], headers: Mapping[str, str], now: float) -> None:
    name = "x-date" if "x-date" in signed else "date"
    if name not in signed:
        raise SignatureRefused("not signed: date")
    try:
        stamp = parsedate_to_datetime(headers.get(name, ""))
    except ValueError as error:
        raise SignatureRefused(f"the {name} header is not an HTTP date") from error
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=UTC)
    skew = abs((datetime.fromtimestamp(now, UTC) - stamp).total_seconds())
    if skew > MAX_SKEW:
        raise SignatureRefused(f"the {name} header is {skew:.0f} s off")
