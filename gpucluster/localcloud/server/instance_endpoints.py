"""What instances reach at the addresses that they know from OCI: metadata service, resolver and the API with TLS.

For each VCN two web servers and a name server at its gateway, which see the address of each instance; the engine leads
instances there.
They run in the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.engine.protocol import NetworkListeners
from gpucluster.localcloud.server.connections import Connections
from gpucluster.localcloud.server.forwarder import Gateway, gateway_socket, gateways
from gpucluster.localcloud.server.name_server import NameListener, NameServer
from gpucluster.localcloud.state.cloud import CloudState, log

_ANY_PORT = 0


@dataclass
class _Listener:
    """One web server."""

    port: int
    server: uvicorn.Server
    task: asyncio.Task[None]


@dataclass
class _Listeners:
    """All of one network."""

    gateway: str
    metadata: _Listener
    api: _Listener
    names: NameListener

    def stop(self) -> None:
        """Stop listening, soon."""
        self.metadata.server.should_exit = self.api.server.should_exit = True
        self.names.close()


class _QuietServer(uvicorn.Server):
    """A web server that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the server of the API ends the process."""
        yield


class InstanceEndpoints:
    """The metadata service, the resolver and the API for the instances of all VCNs of a cloud.

    Args:
        metadata, api: the two ASGI applications.
        names: the resolver.
        tls: a file with the key and the certificate of the API.
        connections: what clients may take.
    """

    def __init__(
        self, cloud: CloudState, metadata: Any, api: Any, names: NameServer, tls: Path, connections: Connections
    ) -> None:
        self._cloud = cloud
        self._connections = connections
        self._metadata, self._api, self._names = metadata, api, names
        self._tls = str(tls)
        self._listeners: dict[str, _Listeners] = {}
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Listen for the networks that exist, and nowhere else."""
        if not self._cloud.engine.networked:
            return
        async with self._lock:
            try:
                present = set(await asyncio.to_thread(self._cloud.engine.networks))
                networks = {name: gateway for name, gateway in gateways(self._cloud).items() if name in present}
                for name in set(self._listeners) - set(networks):
                    self._listeners.pop(name).stop()
                for name in set(networks) - set(self._listeners):
                    self._listeners[name] = await self._listen(networks[name])
                listeners = {
                    name: NetworkListeners(
                        own.gateway, own.metadata.port, own.api.port, own.names.udp_port, own.names.tcp_port,
                        networks[name].vcn,
                    )
                    for name, own in self._listeners.items()
                }  # fmt: skip
                await asyncio.to_thread(self._cloud.engine.serve_networks, listeners)
            except (OSError, GpuClusterError) as error:
                log.error("instances can't reach the metadata service and the resolver: %s", error)

    async def _listen(self, gateway: Gateway) -> _Listeners:
        names = await self._names.listen(gateway.address, gateway.vcn)
        return _Listeners(
            gateway.address,
            self._serve(self._metadata, gateway.address, None),
            self._serve(self._api, gateway.address, self._tls),
            names,
        )

    def _serve(self, application: Any, address: str, certificate: str | None) -> _Listener:
        listener = gateway_socket(address, _ANY_PORT)
        config = uvicorn.Config(
            application, log_config=None, access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=self._connections.bounds.idle_seconds,
            ssl_certfile=certificate, http=self._connections.protocol(), ws="none",
        )  # fmt: skip
        server = _QuietServer(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        return _Listener(int(listener.getsockname()[1]), server, task)

    async def close(self) -> None:
        """Stop listening. The rules stay: instances continue to run, and must not reach what the host has there."""
        for listeners in self._listeners.values():
            listeners.stop()
        servers = [one for own in self._listeners.values() for one in (own.metadata, own.api)]
        await asyncio.gather(*(one.task for one in servers), return_exceptions=True)
