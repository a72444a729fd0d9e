"""Signed calls of the OCI REST API over plain HTTP, without imports that are slow.

The import of the `oci` SDK needs 0.4 s, and Terraform starts its provider several times in one run.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_RETRY_PAUSES = (0.2, 0.4, 0.8, 1.6)  # seconds before each further attempt
RETRYABLE = frozenset({429, 500, 502, 503, 504})
_TIMEOUT = 60.0  # seconds for one call


class ServiceError(Exception):
    """An error response of the API, or status 0 if it could not be reached."""

    def __init__(self, status: int, code: str, message: str, *, target: str = "", request_id: str = "") -> None:
        super().__init__(f"{status}-{code}, {message}")
        self.status = status
        self.code = code
        self.message = message
        self.target = target
        self.request_id = request_id


class CredentialsError(Exception):
    """The credentials can't be used. The message has the reason."""


@dataclass(frozen=True)
class ApiCredentials:
    """The identity of the caller: an API key of a user, or the token of a session.

    Args:
        token_file: of a session. It is read for each request, as the real provider does: it may be renewed.
    """

    tenancy: str
    user: str
    fingerprint: str
    key_file: Path
    token_file: Path | None = None

    def key_id(self) -> str:
        """What a signature names as its key. Raises ServiceError."""
        if self.token_file is None:
            return f"{self.tenancy}/{self.user}/{self.fingerprint}"
        try:
            return f"ST${self.token_file.read_text().strip()}"
        except OSError as error:
            message = f"The token {self.token_file} can't be read: {error.strerror}."
            raise ServiceError(HTTPStatus.UNAUTHORIZED, "NotAuthenticated", message) from error

    def load_key(self) -> RSAPrivateKey:
        """Read the private key. Raises CredentialsError."""
        try:
            # A damaged key fails when it signs. Checking it here would take longer than a call.
            text = self.key_file.read_bytes()
            key = load_pem_private_key(text, password=None, unsafe_skip_rsa_key_validation=True)
        except OSError as error:
            raise CredentialsError(f"The private key {self.key_file} can't be read: {error.strerror}.") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise CredentialsError(f"{self.key_file} is not a private key without a passphrase: {error}.") from error
        if not isinstance(key, RSAPrivateKey):
            raise CredentialsError(f"{self.key_file} is not an RSA key; API keys of OCI are RSA keys.")
        return key


@dataclass(frozen=True)
class RestReply:
    """A response of the API: parsed JSON, headers with names in lower case, and the text itself."""

    body: Any
    headers: Mapping[str, str]
    text: str = ""


class RestClient:
    """Calls one endpoint. Several threads may use it; each has its own connection.

    Args:
        endpoint: such as http://127.0.0.1:8000, for every service.
    """

    def __init__(self, endpoint: str, credentials: ApiCredentials) -> None:
        self.endpoint = endpoint
        self._host = urlsplit(endpoint).netloc
        self._credentials = credentials
        self._key = credentials.load_key()
        self._local = threading.local()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        retry_token: str = "",
    ) -> RestReply:
        """One call, repeated while the service is busy, failing or unreachable. Raises ServiceError."""
        target = f"{path}?{urlencode(query)}" if query else path
        data = b"" if body is None else json.dumps(body).encode()
        extra = {"opc-retry-token": retry_token} if retry_token else {}
        for pause in (*_RETRY_PAUSES, None):
            try:
                return self._once(method, target, data, extra)
            except ServiceError as error:
                # A retry is safe: a create has a retry token, and an unreachable service has done nothing.
                if pause is None or error.status not in RETRYABLE | {0}:
                    raise
            time.sleep(pause)
        raise AssertionError("the last attempt either returns or raises")

    def items(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        """All items of a list, page by page. Some lists of OCI are arrays, some are {"items": [...]}."""
        page: dict[str, str] = {}
        while True:
            reply = self.call("GET", path, query={**query, **page})
            yield from reply.body["items"] if isinstance(reply.body, dict) else reply.body
            if not (following := reply.headers.get("opc-next-page")):
                return
            page = {"page": following}

    def _once(self, method: str, target: str, data: bytes, extra: Mapping[str, str]) -> RestReply:
        headers = {**self._signed_headers(method, target, data), **extra, "accept": "application/json"}
        try:
            status, text, received = self._exchange(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self._drop_connection()
            message = f"the local cloud does not answer at {self.endpoint}: {error}"
            raise ServiceError(0, "Unreachable", message, target=f"{method} {target}") from error
        try:
            parsed = json.loads(text) if text.strip() else None
        except ValueError:
            parsed = None
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return RestReply(parsed, received, text.decode(errors="replace"))
        fault = parsed if isinstance(parsed, dict) else {}
        raise ServiceError(
            status,
            str(fault.get("code", "Unknown")),
            str(fault.get("message", text.decode(errors="replace")[:500])),
            target=f"{method} {target}",
            request_id=received.get("opc-request-id", ""),
        )

    def _exchange(
        self, method: str, target: str, data: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        fresh = getattr(self._local, "connection", None) is None
        try:
            return self._send(method, target, data, headers)
        except (OSError, http.client.HTTPException):
            # The server may close an idle connection. To repeat a POST is safe, because it has a retry token.
            if fresh:
                raise
            self._drop_connection()
            return self._send(method, target, data, headers)

    def _send(
        self, method: str, target: str, data: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT)
        connection.request(method, target, body=data or None, headers=dict(headers))
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}

    def _drop_connection(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _signed_headers(self, method: str, target: str, data: bytes) -> dict[str, str]:
        headers = {"date": formatdate(usegmt=True), "host": self._host}
        signed = {"date": headers["date"], "(request-target)": f"{method.lower()} {target}", "host": self._host}
        if method in ("POST", "PUT", "PATCH"):
            content = {
                "content-length": str(len(data)),
                "content-type": "application/json",
                "x-content-sha256": base64.b64encode(hashlib.sha256(data).digest()).decode(),
            }
            headers |= content
            signed |= content
        text = "\n".join(f"{name}: {value}" for name, value in signed.items())
        signature = base64.b64encode(self._key.sign(text.encode(), PKCS1v15(), SHA256())).decode()
        headers["authorization"] = (
            f'Signature version="1",keyId="{self._credentials.key_id()}",algorithm="rsa-sha256",'
            f'headers="{" ".join(signed)}",signature="{signature}"'
        )
        return headers
