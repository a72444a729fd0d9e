"""Offers the metadata service to the instances of every VCN: a web server at the VCN's gateway, which sees the address
of each instance, and the engine's path from 169.254.169.254 to it. Runs in the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.metadata.service import MetadataService
from gpucluster.localcloud.server.forwarder import gateway_socket, gateways
from gpucluster.localcloud.state.cloud import CloudState, log

_ANY_PORT = 0


@dataclass
class _Listener:
    """The web server at one gateway."""

    address: str
    port: int
    server: uvicorn.Server
    task: asyncio.Task[None]


class _QuietServer(uvicorn.Server):
    """A web server that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the server of the API ends the process."""
        yield


class MetadataEndpoint:
    """The metadata service of all VCNs of a cloud."""

    def __init__(self, cloud: CloudState, service: MetadataService) -> None:
        self._cloud = cloud
        self._service = service
        self._listeners: dict[str, _Listener] = {}
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Listen for the networks that exist, and nowhere else."""
        async with self._lock:
            try:
                present = set(await asyncio.to_thread(self._cloud.engine.networks))
                wanted = {name: address for name, address in gateways(self._cloud).items() if name in present}
                for name in set(self._listeners) - set(wanted):
                    self._listeners.pop(name).server.should_exit = True
                for name in set(wanted) - set(self._listeners):
                    self._listeners[name] = self._listen(wanted[name])
                paths = {name: (one.address, one.port) for name, one in self._listeners.items()}
                await asyncio.to_thread(self._cloud.engine.serve_metadata, paths)
            except (OSError, GpuClusterError) as error:
                log.error("instances can't reach the metadata service: %s", error)

    def _listen(self, address: str) -> _Listener:
        listener = gateway_socket(address, _ANY_PORT)
        config = uvicorn.Config(
            self._service, log_config=None, access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=5,
        )  # fmt: skip
        server = _QuietServer(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        return _Listener(address, int(listener.getsockname()[1]), server, task)

    async def close(self) -> None:
        """Stop listening. The rules stay: instances continue to run, and must not reach what the host has there."""
        for one in self._listeners.values():
            one.server.should_exit = True
        await asyncio.gather(*(one.task for one in self._listeners.values()), return_exceptions=True)
