"""What instances reach at the gateway of their VCN: the metadata service, the resolver and the API with TLS."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import NetworkListeners
from gpucluster.localcloud.metadata.service import MetadataService
from gpucluster.localcloud.server.connections import Bounds, Connections
from gpucluster.localcloud.server.home import open_authority, open_cloud, write_certificates
from gpucluster.localcloud.server.instance_endpoints import InstanceEndpoints
from gpucluster.localcloud.server.name_server import NameServer
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

# A part of the loopback network: every machine can bind it, and no route leads there.
BLOCK, GATEWAY = "127.91.0.0/24", "127.91.0.1"


class Networked(NullEngine):
    """The double that launches nothing, with networks: it records where instances are led, and leads nobody."""

    networked = True
    led: Mapping[str, NetworkListeners]

    def serve_networks(self, listeners: Mapping[str, NetworkListeners]) -> None:
        self.led = dict(listeners)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("endpoints") / "cloud") as api:
        yield api


async def greet(scope: Any, receive: Any, send: Any) -> None:
    """In place of the API."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["client"][0].encode()})


def test_each_network_has_three_listeners_until_its_vcn_is_gone(api: Api) -> None:
    vcn = api.vcn(BLOCK, "endpoints")
    authority = open_authority(api.home)
    engine = Networked(api.home / "null")
    cloud = open_cloud(api.home, engine, authority)

    def asked(listeners: NetworkListeners) -> tuple[int, int, str]:
        """The status of the metadata service for a client that is not an instance, that of the API, and its client."""
        metadata = http.client.HTTPConnection(GATEWAY, listeners.metadata_port, timeout=PATIENCE_S)
        metadata.request("GET", "/opc/v2/instance/")
        context = ssl.create_default_context(cafile=str(api.home / "credentials" / "ca.pem"))
        context.check_hostname = False
        encrypted = http.client.HTTPSConnection(GATEWAY, listeners.api_port, timeout=PATIENCE_S, context=context)
        encrypted.request("GET", "/")
        answer = encrypted.getresponse()
        query = dns.message.make_query("nothing.oraclevcn.com", "A")
        dns.query.udp(query, GATEWAY, PATIENCE_S, listeners.udp_name_port)
        dns.query.tcp(query, GATEWAY, PATIENCE_S, listeners.tcp_name_port)
        return metadata.getresponse().status, answer.status, answer.read().decode()

    async def scenario() -> None:
        connections = Connections(Bounds())
        endpoints = InstanceEndpoints(
            cloud, MetadataService(cloud, authority), greet, NameServer(cloud, connections),
            write_certificates(api.home, authority), connections,
        )  # fmt: skip
        await endpoints.refresh()
        ((name, listeners),) = engine.led.items()
        assert name == f"gpucluster-{vcn.id[-12:]}"
        assert (listeners.gateway, listeners.vcn) == (GATEWAY, vcn.id)
        ports = {listeners.metadata_port, listeners.api_port, listeners.tcp_name_port}
        assert len(ports) == 3
        assert await asyncio.to_thread(asked, listeners) == (404, 200, "127.0.0.1")
        await endpoints.refresh()
        assert engine.led == {name: listeners}, "what listens already goes on"
        await asyncio.to_thread(api.network.delete_vcn, vcn.id)
        await endpoints.refresh()
        assert engine.led == {}
        await endpoints.close()

    try:
        asyncio.run(scenario())
    finally:
        cloud.close()


def test_an_engine_without_networks_is_led_nowhere(api: Api) -> None:
    authority = open_authority(api.home)
    engine = Networked(api.home / "null")
    engine.networked, engine.led = False, {}
    cloud = open_cloud(api.home, engine, authority)

    async def scenario() -> None:
        connections = Connections(Bounds())
        endpoints = InstanceEndpoints(cloud, greet, greet, NameServer(cloud, connections), Path("none"), connections)
        await endpoints.refresh()
        await endpoints.close()

    try:
        asyncio.run(scenario())
    finally:
        cloud.close()
    assert engine.led == {}
