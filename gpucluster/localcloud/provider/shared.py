"""One process for all the providers that one Terraform starts.

Terraform starts its provider about five times in one run: for the schemas, for the validation, for each configuration.
The libraries that serve it need 0.3 s of processor time to load. So the first start forks this host, which loads them
once and ends with Terraform. What Terraform starts is a `client` of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpucluster.localcloud.provider.client import DONE


class ProviderSession(Protocol):
    """What the host serves for one client."""

    line: str

    def end(self) -> None:
        """Answer no more calls."""


# Starts a session. Its arguments: the path of its socket, where it writes what Terraform shall log, and what it calls
# when Terraform asks for the end.
Open = Callable[[Path, int, Callable[[], None]], ProviderSession]


def _load() -> Open:
    from gpucluster.localcloud.provider import plugin

    return plugin.opener()


def host(listening: int, private: str, terraform: int) -> None:
    """Serve clients until Terraform has ended.

    Args:
        listening: file descriptor of the socket to which clients connect.
        private: the folder of the sockets, which only this user may enter.
        terraform: its process.
    """
    listener, folder = socket.socket(fileno=listening), Path(private)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdin.fileno())
    os.dup2(nothing, sys.stdout.fileno())

    def end() -> None:
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
        # Not `sys.exit`: threads that still wait for an answer would keep the process, and with it the next run.
        os._exit(0)

    def end_with_terraform() -> None:
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(terraform)], [], [])
        end()

    signal.signal(signal.SIGTERM, lambda *_: end())
    threading.Thread(target=end_with_terraform, daemon=True).start()
    open_session = _load()
    # Terraform waits until no process has the other end of the pipe that is the client's standard error.
    os.dup2(nothing, sys.stderr.fileno())
    number = 0
    while True:
        connection, _ = listener.accept()
        number += 1
        path = folder / str(number)  # short: the path of a socket has 107 characters at most
        threading.Thread(target=_serve_client, args=(connection, path, open_session), daemon=True).start()


def _serve_client(connection: socket.socket, path: Path, open_session: Open) -> None:
    with connection:
        _, (errors, *_), _, _ = socket.recv_fds(connection, 1, 1)
        stop_request = threading.Event()

        def finish() -> None:
            stop_request.set()
            connection.shutdown(socket.SHUT_RD)

        try:
            session = open_session(path, errors, finish)
            with contextlib.suppress(OSError):
                connection.sendall(session.line.encode())
                # Nothing ever comes: this returns when Terraform asks for the end, or when the client is gone.
                connection.recv(1)
            session.end()
            if stop_request.is_set():
                connection.sendall(DONE)
        except Exception:  # of any kind: Terraform shows it, and the sessions of other clients go on
            os.write(errors, traceback.format_exc().encode())
        finally:
            os.close(errors)
            path.unlink(missing_ok=True)
