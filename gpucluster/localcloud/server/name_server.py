"""The resolver of each VCN: a name server at its gateway, to which the engine leads what instances ask 169.254.169.254.

Names of the VCN come from the cloud's rows, all others from the name servers of this machine. Podman's own name server
is not used: it forgets all names of all networks for the time of a restart whenever a container begins or ends, and
ends for good where a file of its settings is being written at that moment (its version 1.4: containers/aardvark-dns).
It runs in the server's event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.resolver

from gpucluster.localcloud.metadata.host_names import answer, respond
from gpucluster.localcloud.server.connections import Connections
from gpucluster.localcloud.server.forwarder import gateway_socket
from gpucluster.localcloud.state.cloud import CloudState, log

_ANY_PORT = 0
# For all name servers together: a client asks again after five seconds (resolv.conf(5)).
_ANSWER_S = 4.0
# For the next query on a connection.
_IDLE_S = 10.0
# Queries that wait for an answer at the same time. What comes beyond is dropped: who asked asks again.
_AT_ONCE = 1024
# Bytes of a datagram that every client takes, where it names no number (RFC 1035).
_SMALL = 512
_LENGTH_BYTES = 2


@dataclass(frozen=True)
class NameListener:
    """Where the name server of one VCN listens; `close` ends it."""

    udp_port: int
    tcp_port: int
    close: Callable[[], None]


class NameServer:
    """Answers the names that the instances of a cloud ask for.

    Args:
        connections: what clients may take.
        upstream: address and port of each name server that knows the names of the internet, the preferred one first.
    """

    def __init__(
        self,
        cloud: CloudState,
        connections: Connections,
        upstream: Callable[[], list[tuple[str, int]]] | None = None,
    ) -> None:
        self._cloud = cloud
        self._connections = connections
        self._upstream = upstream or of_this_machine
        self._waiting: set[asyncio.Task[None]] = set()

    async def listen(self, address: str, vcn: str) -> NameListener:
        """Listen at the gateway of a VCN, at ports that are free."""
        datagrams = gateway_socket(address, _ANY_PORT, datagrams=True)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(self, vcn), sock=datagrams
        )
        try:
            stream = await asyncio.start_server(
                lambda reader, writer: self._serve_stream(vcn, reader, writer), sock=gateway_socket(address, _ANY_PORT)
            )
        except OSError:
            transport.close()
            raise

        def close() -> None:
            transport.close()
            stream.close()

        return NameListener(_port(datagrams), _port(stream.sockets[0]), close)

    def received(self, vcn: str, wire: bytes, send: Callable[[bytes], None]) -> None:
        """Answer a datagram, later."""
        if len(self._waiting) >= _AT_ONCE:
            return
        task = asyncio.get_running_loop().create_task(self._answer_datagram(vcn, wire, send))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _answer_datagram(self, vcn: str, wire: bytes, send: Callable[[bytes], None]) -> None:
        answer = await self._answer(vcn, wire)
        if answer is not None:
            query, reply = answer
            # Who gets a part of the answer asks again over TCP.
            send(reply.to_wire(max_size=max(query.payload, _SMALL), prefer_truncation=True))

    async def _serve_stream(self, vcn: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = str(writer.get_extra_info("peername")[0])
        if not self._connections.room_for(client):
            writer.transport.abort()
            return
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                    wire = await reader.readexactly(size)
                answer = await self._answer(vcn, wire)
                if answer is None:
                    break
                async with asyncio.timeout(_IDLE_S):
                    writer.write(answer[1].to_wire(prepend_length=True))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.left(client)
            writer.close()

    async def _answer(self, vcn: str, wire: bytes) -> tuple[dns.message.Message, dns.message.Message] | None:
        """The query and its answer; None for bytes that are not a query."""
        try:
            query = dns.message.from_wire(wire)
        except (dns.exception.DNSException, ValueError):
            return None
        if query.flags & dns.flags.QR or query.opcode() != dns.opcode.QUERY:
            return None
        own = await asyncio.to_thread(respond, self._cloud, vcn, query)
        return query, own if own is not None else await self._forwarded(query)

    async def _forwarded(self, query: dns.message.Message) -> dns.message.Message:
        servers = self._upstream()
        for address, port in servers:
            patience = _ANSWER_S / len(servers)
            try:
                return (await dns.asyncquery.udp_with_fallback(query, address, timeout=patience, port=port))[0]
            except (dns.exception.DNSException, OSError) as error:
                log.info("the name server %s does not answer: %s", address, type(error).__name__)
        return answer(query, dns.rcode.SERVFAIL)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer, vcn: str) -> None:
        self._server = server
        self._vcn = vcn
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of another class in Python 3.11, with the same methods.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        def send(reply: bytes) -> None:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.sendto(reply, addr)

        self._server.received(self._vcn, data, send)


def of_this_machine() -> list[tuple[str, int]]:
    """The name servers of this machine. They are read each time: they change with its network."""
    try:
        resolver = dns.resolver.Resolver()
    except (dns.exception.DNSException, OSError) as error:
        log.warning("this machine's name servers are not known: %s", error)
        return []
    return [(str(server), resolver.port) for server in resolver.nameservers]


def _port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])
