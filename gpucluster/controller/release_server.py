"""Serves the files of one folder by HTTP, for reading only: no listing, no folders below it, no hidden files.

Usage: gpucluster-agent release-server ADDRESS PORT FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import stat
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from gpucluster.node_agent.notify import notify

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~-]{0,254}")
# Clients at a time, and of them from one address. Further clients get status 503 and ask again.
MAX_CLIENTS = 64
MAX_CLIENTS_PER_ADDRESS = 8
# Limits for the request, for the whole answer, and for a pause in between.
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 900.0
SILENCE_SECONDS = 60.0
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
# The address may be missing while the machine boots.
IP_FREEBIND = 15


class Client(NamedTuple):
    """A client that is served, and until when (time.monotonic)."""

    address: str
    until: float


class ReleaseServer(ThreadingHTTPServer):
    """One thread per client, and a limit for the number of clients and for the time of each."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: str, port: int, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.clients: dict[Any, Client] = {}
        super().__init__((address, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the client, unless there are too many."""
        address = client_address[0]
        with self.lock:
            addresses = [client.address for client in self.clients.values()]
            accepted = len(addresses) < MAX_CLIENTS and addresses.count(address) < MAX_CLIENTS_PER_ADDRESS
            if accepted:
                self.clients[request] = Client(address, time.monotonic() + REQUEST_SECONDS)
        if accepted:
            super().process_request(request, client_address)
        else:
            with contextlib.suppress(OSError):  # the client is gone
                request.setblocking(False)
                request.send(BUSY)
            self.shutdown_request(request)

    def request_complete(self, request: Any) -> None:
        """The request is complete: from now on the limit for the answer counts."""
        with self.lock:
            self.clients[request] = self.clients[request]._replace(until=time.monotonic() + ANSWER_SECONDS)

    def service_actions(self) -> None:
        """Called every half second: cut off clients whose time is over, which ends their threads."""
        with self.lock:
            for request, client in self.clients.items():
                if time.monotonic() > client.until:
                    with contextlib.suppress(OSError):  # the client is gone
                        request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget the client: another one can be served."""
        with self.lock:
            self.clients.pop(request, None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        """Bind also before the network is complete."""
        self.socket.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a client that disconnects is not an error."""


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of one name."""

    server: ReleaseServer
    timeout = SILENCE_SECONDS
    server_version, sys_version = "gpucluster", ""

    def do_GET(self) -> None:
        """Send the file."""
        self.answer(body=True)

    def do_HEAD(self) -> None:
        """Send the headers only."""
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        """Answer with a file of the folder, or 404."""
        self.server.request_complete(self.request)
        try:
            file = opened(self.server.folder, unquote(self.path[1:]))
        except OSError:
            self.send_error(404)
            return
        with file:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            if body:
                shutil.copyfileobj(file, self.wfile, 1024 * 1024)

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: the journal is for errors."""


def opened(folder: Path, name: str) -> BinaryIO:
    """Open a file of the folder itself.

    Raises:
        OSError: there is none, or it is something else than a regular file.
    """
    if not NAME.fullmatch(name):
        raise FileNotFoundError(name)
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(name)
    return open(descriptor, "rb")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent release-server", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("address", help="the address to listen at")
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path, help="the folder with the files")
    options = parser.parse_args(argv)
    server = ReleaseServer(options.address, options.port, options.folder)
    notify("READY=1")
    server.serve_forever()
    return 0
