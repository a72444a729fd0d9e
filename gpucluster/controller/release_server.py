"""Serves the files of one folder by HTTP, for reading only: no listing, no folders below it, no hidden files.

Usage: gpucluster-agent release-server ADDRESS PORT FOLDER
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from gpucluster.controller.http_server import BoundedHandler, BoundedServer, ServerLimits
from gpucluster.node_agent.notify import notify

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~-]{0,254}")
LIMITS = ServerLimits(clients=64, clients_per_address=8, request_s=10.0, answer_s=900.0)
# The address may be missing while the machine boots.
IP_FREEBIND = 15


class ReleaseServer(BoundedServer):
    """Serves a folder, at an address that this machine may not have yet.

    Raises:
        OSError: the port can't be used.
    """

    def __init__(self, address: str, port: int, folder: Path, limits: ServerLimits = LIMITS) -> None:
        self.folder = folder
        super().__init__((address, port), _Handler, limits)

    def server_bind(self) -> None:
        """Bind also before the network is complete."""
        self.socket.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        super().server_bind()


class _Handler(BoundedHandler):
    """GET and HEAD of one name."""

    server: ReleaseServer

    def do_GET(self) -> None:  # noqa: N802 - of the library
        """Send the file."""
        self._answer(body=True)

    def do_HEAD(self) -> None:  # noqa: N802 - of the library
        """Send the headers only."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        self.server.request_complete(self.request)
        try:
            file = opened(self.server.folder, unquote(self.path[1:]))
        except OSError:
            self.send_error(404)
            return
        with file:
            self.send_headers("application/octet-stream", os.fstat(file.fileno()).st_size)
            if body:
                shutil.copyfileobj(file, self.wfile, 1024 * 1024)


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
