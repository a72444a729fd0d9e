"""The server process: `python -m gpucluster.localcloud.server --home DIR`. `control` starts and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn

from gpucluster.localcloud.bastion.endpoint import BastionEndpoint
from gpucluster.localcloud.server import recovery
from gpucluster.localcloud.server.application import Application
from gpucluster.localcloud.server.forwarder import Forwarder
from gpucluster.localcloud.server.home import announce
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.paths import write_private

_GRACE = 10  # seconds for open requests at a stop


def listen(store: ResourceStore) -> socket.socket:
    """The socket on 127.0.0.1, at the port of the first start; another one if somebody else has taken that."""
    listener = _tcp_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", int(store.setting("port") or 0)))
    except OSError as error:
        log.warning("port %s is taken (%s); choosing another", store.setting("port"), error.strerror)
        listener.bind(("127.0.0.1", 0))
    store.set_setting("port", str(listener.getsockname()[1]))
    return listener


def _tcp_socket() -> socket.socket:
    # asyncio sets TCP_NODELAY only where the protocol is named; without it every answer waits 40 ms for an ACK.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


async def serve(cloud: CloudState, listener: socket.socket, held: int) -> None:
    """Answer until SIGTERM or SIGINT. `held` is the descriptor of the server's lock."""
    port = listener.getsockname()[1]
    forwarder = Forwarder(cloud, port)
    cloud.networks_changed = forwarder.changed
    endpoint_of_bastions = BastionEndpoint(cloud)
    cloud.open_ssh_endpoint, cloud.session_ended = endpoint_of_bastions.open, endpoint_of_bastions.session_ended
    await asyncio.to_thread(recovery.recover, cloud)
    await asyncio.to_thread(endpoint_of_bastions.reopen)
    await forwarder.refresh()
    config = uvicorn.Config(
        Application(cloud),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=30,
    )
    listener.listen(512)
    endpoint = f"http://127.0.0.1:{port}"
    write_private(cloud.home / "endpoint.json", announce(held, endpoint))
    log.info("listening on %s", endpoint)
    sweeper = asyncio.create_task(_sweep(cloud))
    await _Server(config).serve(sockets=[listener])
    sweeper.cancel()
    forwarder.close()
    endpoint_of_bastions.close()


class _Server(uvicorn.Server):
    """Uvicorn raises the signal again when it is done, which would end us before our jobs are."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, and nothing more."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def _sweep(cloud: CloudState) -> None:
    while True:
        await asyncio.to_thread(cloud.store.forget, gone_before=time.time() - recovery.RETENTION)
        await asyncio.sleep(3600)
