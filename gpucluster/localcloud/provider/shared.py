"""One process for all the providers that one Terraform starts.

Terraform starts its provider about five times in one run: for the schemas, for the validation, for each configuration.
The libraries that serve it need 0.2 s of processor time to load. So the first start forks a host, which loads them once
and ends with Terraform. What Terraform starts is a client: it prints the address that the host gives it, and ends when
Terraform is done with that address. Until the host loads the libraries, only light modules are imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

_DONE = b"0"  # from the host to a client: Terraform asked for the end
_LISTENER = "host"


class Session(Protocol):
    """What the host serves for one client."""

    line: str

    def end(self) -> None:
        """Answer no more calls."""


# Starts a session. Its arguments: the path of its socket, where it writes what Terraform shall log, and what it calls
# when Terraform asks for the end.
Open = Callable[[Path, int, Callable[[], None]], Session]


def serve(load: Callable[[], Open]) -> int:
    """Be the provider for the process that started this one, until that asks for the end or has ended.

    Args:
        load: imports what is slow. Only the host calls it.
    """
    # Ctrl-C reaches the whole foreground process group; Terraform decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terraform = os.getppid()
    with _connected(folder_of(terraform), terraform, load) as connection:
        socket.send_fds(connection, [b"\0"], [sys.stderr.fileno()])
        with connection.makefile("rb") as answers:
            sys.stdout.write(answers.readline().decode())
            sys.stdout.flush()
            return 0 if answers.read(1) == _DONE else 1


def folder_of(terraform: int) -> Path:
    """The private folder that the providers of one Terraform share. Its name can be guessed, so a folder that another
    user made is not taken; the provider then has a host of its own."""
    root = Path(os.environ.get("PLUGIN_UNIX_SOCKET_DIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - checked
    started = Path(f"/proc/{terraform}/stat").read_text().rpartition(")")[2].split()[19]
    folder = root / f"gpucluster-provider-{terraform}-{started}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return folder
    import tempfile

    return Path(tempfile.mkdtemp(prefix="gpucluster-provider-", dir=root))


@contextlib.contextmanager
def _connected(folder: Path, terraform: int, load: Callable[[], Open]) -> Iterator[socket.socket]:
    """A connection to the host, which is started if there is none."""
    address = str(folder / _LISTENER)
    with socket.socket(socket.AF_UNIX) as connection:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                _start_host(folder, terraform, load)
                connection.connect(address)
            fcntl.flock(lock, fcntl.LOCK_UN)  # the host has the open file, too
        yield connection


def _start_host(folder: Path, terraform: int, load: Callable[[], Open]) -> None:
    address = folder / _LISTENER
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        if os.fork() == 0:
            try:
                _host(listener, folder, terraform, load)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)


def _host(listener: socket.socket, folder: Path, terraform: int, load: Callable[[], Open]) -> None:
    """Serve clients until Terraform has ended."""
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
    open_session = load()
    # Terraform waits until nobody has the other end of the pipe that is the client's standard error.
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
        asked = threading.Event()

        def finish() -> None:
            asked.set()
            connection.shutdown(socket.SHUT_RD)

        try:
            session = open_session(path, errors, finish)
            with contextlib.suppress(OSError):
                connection.sendall(session.line.encode())
                # Nothing ever comes: this returns when Terraform asks for the end, or when the client is gone.
                connection.recv(1)
            session.end()
            if asked.is_set():
                connection.sendall(_DONE)
        except Exception:
            os.write(errors, traceback.format_exc().encode())
        finally:
            os.close(errors)
            path.unlink(missing_ok=True)
