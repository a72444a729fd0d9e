"""Offers the API at the gateway of every VCN, so instances reach it there at the same port as on the host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from gpucluster.localcloud.compute.addresses import engine_networks, gateway_address
from gpucluster.localcloud.server.connections import Connections
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState

# linux/in.h: bind an address that no interface has yet. Podman creates the bridge with the first container.
_IP_FREEBIND = 15
_CHUNK = 65536


@dataclass(frozen=True)
class Gateway:
    """The address of this host in a CIDR block of a VCN."""

    address: str
    vcn: str


def gateways(cloud: CloudState) -> dict[str, Gateway]:
    """Those of all CIDR blocks of all VCNs, by the engine's name of the block's network."""
    vcns = [vcn for vcn in cloud.store.find("vcn") if vcn.state != LifecycleState.TERMINATING]
    blocks = [(vcn.id, name, block) for vcn in vcns for name, block in engine_networks(vcn).items()]
    return {name: Gateway(gateway_address(block), vcn) for vcn, name, block in blocks}


def gateway_socket(address: str, port: int, *, datagrams: bool = False) -> socket.socket:
    """A socket at a gateway, for connections or for datagrams; port 0 chooses a free one."""
    kind = (socket.SOCK_DGRAM, socket.IPPROTO_UDP) if datagrams else (socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener = socket.socket(socket.AF_INET, *kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener


class Forwarder:
    """Listens at each VCN's gateway address and forwards bytes to 127.0.0.1. Runs in the server's event loop.

    There all clients have one address, so what one of them may take is counted here.
    """

    def __init__(self, cloud: CloudState, port: int, connections: Connections) -> None:
        self._cloud = cloud
        self._port = port
        self._connections = connections
        self._servers: dict[str, asyncio.Server] = {}
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Listen at the gateways of all VCNs, and nowhere else."""
        async with self._lock:
            addresses = {gateway.address for gateway in gateways(self._cloud).values()}
            for address in set(self._servers) - addresses:
                self._servers.pop(address).close()
            for address in addresses - set(self._servers):
                try:
                    self._servers[address] = await asyncio.start_server(
                        self._serve, sock=gateway_socket(address, self._port)
                    )
                except OSError as error:
                    log.error("instances can't reach the API at %s:%d: %s", address, self._port, error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = str(writer.get_extra_info("peername")[0])
        if not self._connections.room_for(client):
            writer.transport.abort()
            return
        try:
            await self._forward(reader, writer)
        finally:
            self._connections.left(client)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            log.error("the forwarder can't reach the API: %s", error)
            writer.close()
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # When one peer closes, both directions end; there is no client left to get an error.
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()
