"""What instances reach at the addresses that they know from OCI: the metadata service and the API with TLS.

For each VCN two web servers at its gateway, which see the address of each instance; the engine leads instances there.
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
from gpucluster.localcloud.server.forwarder import gateway_socket, gateways
from gpucluster.localcloud.state.cloud import CloudState, log

_ANY_PORT = 0


@dataclass
class _Listener:
    """One web server."""

    port: int
    server: uvicorn.Server
    task: asyncio.Task[None]


class _QuietServer(uvicorn.Server):
    """A web server that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the server of the API ends the process."""
        yield


class InstanceEndpoints:
    """The metadata service and the API for the instances of all VCNs of a cloud.

    Args:
        metadata, api: the two ASGI applications.
        tls: a file with the key and the certificate of the API.
        connections: what clients may take.
    """

    def __init__(self, cloud: CloudState, metadata: Any, api: Any, tls: Path, connections: Connections) -> None:
        self._cloud = cloud
        self._connections = connections
        self._applications = ((metadata, None), (api, str(tls)))
        self._listeners: dict[str, tuple[str, list[_Listener]]] = {}
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Listen for the networks that exist, and nowhere else."""
        if not self._cloud.engine.networked:
            return
        async with self._lock:
            try:
                present = set(await asyncio.to_thread(self._cloud.engine.networks))
                found = {name: gateway for name, gateway in gateways(self._cloud).items() if name in present}
                wanted = {name: gateway.address for name, gateway in found.items()}
                for name in set(self._listeners) - set(wanted):
                    _stop(self._listeners.pop(name)[1])
                for name in set(wanted) - set(self._listeners):
                    self._listeners[name] = (wanted[name], self._listen(wanted[name]))
                listeners = {
                    name: NetworkListeners(gateway, metadata.port, api.port, found[name].vcn)
                    for name, (gateway, (metadata, api)) in self._listeners.items()
                }
                await asyncio.to_thread(self._cloud.engine.serve_networks, listeners)
            except (OSError, GpuClusterError) as error:
                log.error("instances can't reach the metadata service: %s", error)

    def _listen(self, address: str) -> list[_Listener]:
        made = []
        for application, certificate in self._applications:
            listener = gateway_socket(address, _ANY_PORT)
            config = uvicorn.Config(
                application, log_config=None, access_log=False, lifespan="off", server_header=False,
                timeout_graceful_shutdown=1, timeout_keep_alive=5, ssl_certfile=certificate,
                http=self._connections.protocol(), ws="none",
            )  # fmt: skip
            server = _QuietServer(config)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            made.append(_Listener(int(listener.getsockname()[1]), server, task))
        return made

    async def close(self) -> None:
        """Stop listening. The rules stay: instances continue to run, and must not reach what the host has there."""
        running = [one for _, servers in self._listeners.values() for one in servers]
        _stop(running)
        await asyncio.gather(*(one.task for one in running), return_exceptions=True)


def _stop(listeners: list[_Listener]) -> None:
    for one in listeners:
        one.server.should_exit = True
