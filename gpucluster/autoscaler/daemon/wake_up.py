"""Wakes the reconcile loop: from hooks through a datagram socket, from our own threads through a socket pair."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path


class WakeUp:
    """Lets the loop sleep until a hook pokes it, another thread wakes it, or the time is over.

    Args:
        poke: the path of the datagram socket. Anyone who may write to it may wake the loop, and nothing more.
    """

    def __init__(self, poke: Path | None) -> None:
        self._path = poke
        self._poked: socket.socket | None = None
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        if poke is not None:
            poke.unlink(missing_ok=True)
            self._poked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._poked.bind(str(poke))
            # Slurm's user pokes us. The permissions of the socket's folder limit who can; a poke carries no data.
            os.chmod(poke, 0o666)  # noqa: S103
            self._poked.setblocking(False)

    def wake(self, *_: object) -> None:
        """Wake the loop. May be called from any thread and from a signal handler."""
        with contextlib.suppress(OSError):
            self._sender.send(b"!")

    def wait(self, seconds: float) -> None:
        """Sleep for at most so long."""
        sockets = [self._receiver, *([self._poked] if self._poked else [])]
        ready, _, _ = select.select(sockets, [], [], max(0.0, seconds))
        for one in ready:
            with contextlib.suppress(BlockingIOError):
                while one.recv(4096):
                    pass

    def close(self) -> None:
        """Close and remove the socket."""
        for one in (self._receiver, self._sender, self._poked):
            if one is not None:
                one.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
