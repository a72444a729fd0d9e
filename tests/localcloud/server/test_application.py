"""The web application: bodies that it refuses, and the ids of requests."""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.application import Application
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, running
from tests.localcloud.raw_requests import raw, signed
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


def test_requests_that_are_no_json_or_too_large(shared: Api) -> None:
    for body, expected in ((b"{no", (400, "CannotParseRequest")), (b"[]", (400, "CannotParseRequest"))):
        status, answer = raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", body), body)
        assert (status, answer["code"]) == expected
    large = b" " * (3 * 1024 * 1024)
    assert raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", large), large)[0] == 413
    put = signed(shared, "PUT", "/20160918/vcns", b"{}")
    assert raw(shared, "PUT", "/20160918/vcns", put, b"{}")[0] == 405


@pytest.mark.parametrize("deep", [33, 5_000, 900_000])
def test_deep_nesting_is_a_bad_request(shared: Api, deep: int) -> None:
    body = b'{"a":' + b"[" * deep + b"]" * deep + b"}"
    status, answer = raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", body), body)
    assert (status, answer["code"]) == (400, "CannotParseRequest")
    # Before a signature is checked, too.
    assert raw(shared, "POST", "/v1/x509", {}, body)[0] == 401
    page = base64.urlsafe_b64encode(b"[" * min(deep, 20_000)).decode()
    path = f"/20160918/vcns?compartmentId={shared.tenancy}&page={page}"
    assert raw(shared, "GET", path, signed(shared, "GET", path))[0] == 400


def test_a_client_that_goes_before_the_end_of_its_body_is_not_a_fault_of_the_server(shared: Api) -> None:
    host, _, port = shared.endpoint.removeprefix("http://").partition(":")
    marker = f"/20160918/vcns/{secrets.token_hex(8)}"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {marker} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nno".encode())
    file = shared.home / "log" / "server.log"
    lines = wait_for(
        "the log has the request", lambda: [line for line in file.read_text().splitlines() if marker in line]
    )
    assert " 400 " in lines[0]
    assert "Traceback" not in file.read_text()


def test_the_request_id_of_the_caller_comes_back(shared: Api) -> None:
    reply = shared.identity.get_tenancy(shared.tenancy)
    assert "/" in reply.headers["opc-request-id"]


def test_who_has_an_answer_finds_its_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = open_authority(tmp_path)
    cloud = open_cloud(tmp_path, NullEngine(tmp_path / "null"), authority)
    seen: list[str] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(_message: object) -> None:
        seen.append(caplog.text)

    scope = {"type": "http", "method": "GET", "path": "/20160918/vcns", "raw_path": b"/20160918/vcns",
             "query_string": b"", "headers": []}  # fmt: skip
    caplog.set_level("INFO", logger="gpucluster.localcloud")
    try:
        asyncio.run(Application(cloud, authority)(scope, receive, send))
    finally:
        cloud.close()
    assert "GET '/20160918/vcns' - 401 NotAuthenticated" in seen[0]
