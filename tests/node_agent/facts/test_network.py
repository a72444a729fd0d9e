"""What of the cloud's own services a host reaches, and on which physical host it is."""

from __future__ import annotations

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from gpucluster.node_agent import metadata
from gpucluster.node_agent.facts import network


class Metadata(BaseHTTPRequestHandler):
    """A double of the metadata service. Its documents are those that Oracle's own programs read."""

    answer: ClassVar[tuple[int, bytes]] = (200, b"{}")
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, '{"id": "ab12", "rackId": "r"}', "ab12"),
        (200, '{"id": "ab12", "rdmaTopologyData": {"customerHostId": "ocid1.computebaremetalhost.oc1.iad.x"}}',
         "ocid1.computebaremetalhost.oc1.iad.x"),
        (200, '{"id": "ab12", "rdmaTopologyData": null}', "ab12"),
        (200, '{"rackId": "r"}', ""), (200, '{"id": 7}', ""), (200, '{"id": "a b\\n"}', ""), (200, "[]", ""),
        (200, "no json", ""), (404, "", ""), (500, "{}", ""),
    ],
)  # fmt: skip
def test_the_physical_host_is_what_the_metadata_service_reports(
    status: int, body: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Metadata.answer, Metadata.asked[:] = (status, body.encode()), []
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(metadata, "HOST_URL", f"http://127.0.0.1:{server.server_address[1]}/opc/v2/host/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    try:
        assert network.physical_host() == found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert Metadata.asked == [("/opc/v2/host/", "Bearer Oracle")]


def test_the_place_is_a_fact_with_all_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "host_document", lambda: {"networkBlockId": "n", "rackId": "r"})
    known = {"known": True, "island": "", "network_block": "n", "local_block": "r"}
    assert network.place_in_network() == known
    monkeypatch.setattr(metadata, "host_document", dict)
    assert network.place_in_network() == {**dict.fromkeys(known, ""), "known": False}


def test_without_a_metadata_service_no_physical_host_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(metadata, "HOST_URL", f"http://127.0.0.1:{port}/opc/v2/host/")
    assert network.physical_host() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_the_probe_asks_as_a_user_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        services = {"open": there.getsockname(), "closed": closed.getsockname()}
        assert network.Connecting(network.NOBODY, services).reached() == ["open"]
    monkeypatch.setattr(network, "is_reached", lambda ids: (os.getuid(), os.getgid(), os.getgroups()) == ids)
    expected: dict[str, tuple[str, int]] = {"nobody": (65534, 65534, [])}  # type: ignore[dict-item]
    assert network.Connecting(65534, expected).reached() == ["nobody"]
