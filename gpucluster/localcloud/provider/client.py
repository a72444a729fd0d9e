"""What Terraform takes for its provider: a client of the host that serves all providers of one Terraform (`shared`).

It prints the address that the host gives it, and ends when Terraform is done with that address. Terraform starts about
five in one run, so it imports nothing that takes long: `signal`, `socket` or `pathlib` take as long as Python itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import os
import stat
import sys

TYPE_CHECKING = False  # typing itself costs as much as starting Python; type checkers know the name

if TYPE_CHECKING:
    from collections.abc import Callable

    # Is the host, and never returns. Its arguments: the file descriptor of its listening socket, the folder of the
    # sockets, and the process of Terraform.
    Host = Callable[[int, str, int], object]

DONE = b"0"  # from the host to a client: Terraform asked for the end
_LISTENER = "host"


def serve(host: Host) -> int:
    """Be the provider for the process that started this one, until that asks for the end or has ended.

    Args:
        host: runs in a process of its own if there is no host yet. It imports what is slow.
    """
    # Ctrl-C reaches the whole foreground process group; Terraform decides what happens then.
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    terraform = os.getppid()
    connection = _connected(folder_of(terraform), terraform, host)
    errors = sys.stderr.fileno().to_bytes(4, sys.byteorder)
    connection.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, errors)])
    answer = b""
    while b"\n" not in answer:
        part = connection.recv(4096)
        if not part:
            break
        answer += part
    line, end, rest = answer.partition(b"\n")
    sys.stdout.write((line + end).decode())
    sys.stdout.flush()
    return 0 if end and (rest or connection.recv(1)) == DONE else 1


def folder_of(terraform: int) -> str:
    """The private folder that the providers of one Terraform share. Its name can be guessed, so a folder that another
    user made is not taken; the provider then has a host of its own."""
    root = os.environ.get("PLUGIN_UNIX_SOCKET_DIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - checked
    with open(f"/proc/{terraform}/stat", encoding="utf-8", errors="replace") as file:
        started = file.read().rpartition(")")[2].split()[19]
    folder = os.path.join(root, f"gpucluster-provider-{terraform}-{started}")
    try:  # noqa: SIM105 - contextlib takes long to import
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        pass
    status = os.lstat(folder)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return folder
    import tempfile

    return tempfile.mkdtemp(prefix="gpucluster-provider-", dir=root)


def _connected(folder: str, terraform: int, host: Host) -> _socket.socket:
    """A connection to the host, which is started if there is none."""
    address = os.path.join(folder, _LISTENER)
    connection = _socket.socket(_socket.AF_UNIX)
    with open(os.path.join(folder, "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            _start_host(address, folder, terraform, host)
            connection.connect(address)
        fcntl.flock(lock, fcntl.LOCK_UN)  # the host has the open file, too
    return connection


def _start_host(address: str, folder: str, terraform: int, host: Host) -> None:
    try:  # noqa: SIM105 - contextlib takes long to import
        os.unlink(address)
    except FileNotFoundError:
        pass
    listener = _socket.socket(_socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    if os.fork() == 0:
        try:
            host(listener.fileno(), folder, terraform)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    listener.close()
