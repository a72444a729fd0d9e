"""The listening socket, the web server in its event loop, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn

from gpucluster.localcloud.auth.instance_principals import PrincipalAuthority
from gpucluster.localcloud.bastion.endpoint import BastionEndpoint
from gpucluster.localcloud.metadata.service import MetadataService
from gpucluster.localcloud.server import reboots, recovery
from gpucluster.localcloud.server.application import Application
from gpucluster.localcloud.server.connections import Connections, allow_files
from gpucluster.localcloud.server.forwarder import Forwarder
from gpucluster.localcloud.server.home import announce, write_certificates
from gpucluster.localcloud.server.instance_endpoints import InstanceEndpoints
from gpucluster.localcloud.server.name_server import NameServer
from gpucluster.localcloud.server.work_requests import WorkRequestProxy
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.paths import write_private

_GRACE = 10  # seconds for open requests at a stop


def listen(store: ResourceStore) -> socket.socket:
    """A socket at 127.0.0.1 with the port of the last start, or another port if that is in use."""
    listener = _tcp_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", int(store.setting("port") or 0)))
    except OSError as error:
        log.warning("port %s is in use (%s); choosing another one", store.setting("port"), error.strerror)
        listener.bind(("127.0.0.1", 0))
    store.set_setting("port", str(listener.getsockname()[1]))
    return listener


def _tcp_socket() -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is given. Without it every response waits 40 ms for an ACK.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


class _Networks:
    """Offers the API and the metadata service to the instances of every VCN."""

    def __init__(self, forwarder: Forwarder, endpoints: InstanceEndpoints) -> None:
        self._offered = (forwarder, endpoints)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def changed(self) -> None:
        """Update the listeners after a network was added or removed. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        task = self._loop.create_task(self.refresh())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def refresh(self) -> None:
        """Listen where it is needed now."""
        for one in self._offered:
            await one.refresh()


async def serve(cloud: CloudState, authority: PrincipalAuthority, listener: socket.socket, held: int) -> None:
    """Serve until SIGTERM or SIGINT. `held` is the descriptor of the server's lock."""
    port = listener.getsockname()[1]
    connections = Connections(allow_files())
    forwarder = Forwarder(cloud, port, connections)
    application = Application(cloud, authority)
    tls = write_certificates(cloud.home, authority)
    names = NameServer(cloud, connections)
    endpoints = InstanceEndpoints(cloud, MetadataService(cloud, authority), application, names, tls, connections)
    networks = _Networks(forwarder, endpoints)
    cloud.networks_changed = networks.changed
    bastion_endpoint = BastionEndpoint(cloud)
    cloud.open_ssh_endpoint, cloud.session_ended = bastion_endpoint.open, bastion_endpoint.session_ended
    await asyncio.to_thread(recovery.recover, cloud)
    await asyncio.to_thread(bastion_endpoint.reopen)
    await networks.refresh()
    work_requests = WorkRequestProxy(cloud.home, port, tls)
    await work_requests.open()
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        http=connections.protocol(),
        ws="none",
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=connections.bounds.idle_seconds,
    )
    listener.listen(512)
    endpoint = f"http://127.0.0.1:{port}"
    write_private(cloud.home / "endpoint.json", announce(held, endpoint))
    log.info("listening on %s", endpoint)
    beside = [asyncio.create_task(_sweep(cloud)), asyncio.create_task(reboots.follow(cloud))]
    await _Server(config).serve(sockets=[listener])
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    work_requests.close()
    forwarder.close()
    await endpoints.close()
    bastion_endpoint.close()


class _Server(uvicorn.Server):
    """Uvicorn raises the signal again when it is done, which would end the process before its background jobs."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server at SIGTERM and SIGINT, and do nothing else."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def _sweep(cloud: CloudState) -> None:
    while True:
        await asyncio.to_thread(cloud.store.forget, gone_before=time.time() - recovery.RETENTION)
        await asyncio.sleep(3600)
