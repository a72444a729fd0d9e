"""The server process: `python -m gpucluster.localcloud.server --home DIR`. `control` starts and stops it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from gpucluster import process
from gpucluster.errors import GpuClusterError, LockedError
from gpucluster.localcloud import pools, recovery
from gpucluster.localcloud.api.images import publish_images
from gpucluster.localcloud.app import Application
from gpucluster.localcloud.bastion_endpoint import BastionEndpoint
from gpucluster.localcloud.cloud import Cloud, log
from gpucluster.localcloud.credentials import bootstrap
from gpucluster.localcloud.engine import Engine, NullEngine
from gpucluster.localcloud.faults import Faults
from gpucluster.localcloud.forwarder import Forwarder
from gpucluster.localcloud.process_engine import ProcessEngine
from gpucluster.localcloud.store import Store
from gpucluster.paths import write_private

_GRACE = 10  # seconds for open requests at a stop


def open_engine(name: str, home: Path) -> Engine:
    """The engine that runs instances: "podman", "process" for thousands of nodes, or "null" for tests of the API."""
    if name == "null":
        return NullEngine(home / "null")
    if name == "process":
        return ProcessEngine(home)
    from gpucluster.localcloud.podman_engine import PodmanEngine

    return PodmanEngine(home)


def open_cloud(home: Path, engine: Engine) -> Cloud:
    """The cloud of a home, made at the first start."""
    store = Store(home / "cloud.db")
    cloud = Cloud(home, store, engine, bootstrap(home, store), Faults(home))
    cloud.member_lost = lambda pool: pools.member_lost(cloud, pool)
    return cloud


def listen(store: Store) -> socket.socket:
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


def lock(home: Path) -> int:
    """The lock that one server of a home holds while it lives."""
    descriptor = os.open(home / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LockedError("another server of the local cloud already runs", where=str(home)) from error
    announce(descriptor, "")
    return descriptor


def announce(descriptor: int, endpoint: str) -> str:
    """Write into the lock who holds it and where it answers; the same text as endpoint.json's."""
    text = json.dumps({"endpoint": endpoint, "pid": os.getpid(), "identity": process.identity(os.getpid())}) + "\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
    return text


async def serve(cloud: Cloud, listener: socket.socket, held: int) -> None:
    """Answer until SIGTERM or SIGINT. `held` is the descriptor of the server's lock."""
    port = listener.getsockname()[1]
    forwarder = Forwarder(cloud, port)
    cloud.networks_changed = forwarder.changed
    endpoint_of_bastions = BastionEndpoint(cloud)
    cloud.open_gate, cloud.session_ended = endpoint_of_bastions.open, endpoint_of_bastions.session_ended
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


async def _sweep(cloud: Cloud) -> None:
    while True:
        await asyncio.to_thread(cloud.store.forget, gone_before=time.time() - recovery.RETENTION)
        await asyncio.sleep(3600)


def main(argv: list[str] | None = None) -> int:
    """Serve one home; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="gpucluster.localcloud.server")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--engine", choices=("podman", "process", "null"), default="podman", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    home: Path = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        held = lock(home)
        cloud = open_cloud(home, open_engine(options.engine, home))
        publish_images(cloud)
        listener = listen(cloud.store)
        asyncio.run(serve(cloud, listener, held))
        log.info("stopping; instances go on running")
        cloud.close()
        os.close(held)
    except GpuClusterError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
