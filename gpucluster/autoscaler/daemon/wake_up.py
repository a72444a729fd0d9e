"""Wakes the reconcile loop: from hooks through a datagram socket, from the daemon's threads through a socket pair."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import dataclass
from pathlib import Path

# Datagrams that are read at once: a sender that is faster than the loop must not keep it busy.
_DRAINED = 1000


@dataclass(frozen=True, slots=True)
class Woken:
    """Who ended a sleep. Both are false when the time was over.

    Args:
        by_work: a thread of the daemon, or a signal. `by_hook`: a program that may write to the socket.
    """

    by_work: bool = False
    by_hook: bool = False


class WakeUp:
    """Lets the loop sleep until a hook or another thread wakes it, or the time is over.

    Args:
        address: the path of the datagram socket for hooks. A datagram only wakes the loop.
    """

    def __init__(self, address: Path | None) -> None:
        self._path = address
        self._from_hooks: socket.socket | None = None
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        if address is not None:
            address.unlink(missing_ok=True)
            self._from_hooks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._from_hooks.bind(str(address))
            # The folder is closed to all but root, the daemon and Slurm's user, who runs the hooks (see the unit file).
            os.chmod(address, 0o666)  # noqa: S103
            self._from_hooks.setblocking(False)

    def wake(self, *_: object) -> None:
        """Wake the loop. May be called from any thread and from a signal handler."""
        with contextlib.suppress(OSError):
            self._sender.send(b"!")

    def wait(self, seconds: float) -> Woken:
        """Sleep for at most this time."""
        sockets = [self._receiver, *([self._from_hooks] if self._from_hooks else [])]
        ready, _, _ = select.select(sockets, [], [], max(0.0, seconds))
        for receiver in ready:
            with contextlib.suppress(BlockingIOError):
                for _ in range(_DRAINED):
                    receiver.recv(1)
        return Woken(by_work=self._receiver in ready, by_hook=self._from_hooks in ready)

    def close(self) -> None:
        """Close and remove the socket."""
        for endpoint in (self._receiver, self._sender, self._from_hooks):
            if endpoint is not None:
                endpoint.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
