"""Requests without the SDK: a signature, and a request as it is written here."""

from __future__ import annotations

import http.client
import json
from typing import Any

import oci

from tests.localcloud.api_harness import Api
from tests.waiting import PATIENCE_S


def raw(api: Api, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(api.endpoint.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, json.loads(text) if text else None


def signed(api: Api, method: str, path: str, body: bytes = b"", date: str | None = None) -> dict[str, str]:
    signer = oci.signer.Signer(
        api.tenancy, api.config["user"], api.config["fingerprint"], private_key_file_location=api.config["key_file"]
    )
    requests = oci._vendor.requests
    headers = {"content-type": "application/json"}
    if date:
        headers["date"] = date
    request = requests.Request(method, api.endpoint + path, headers=headers, data=body, auth=signer).prepare()
    return {str(name): str(value) for name, value in request.headers.items()}
