"""Tells systemd how we are: one datagram to the socket that it names in NOTIFY_SOCKET (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*words: str) -> None:
    """Send words such as READY=1, WATCHDOG=1, STOPPING=1 or STATUS=...; nothing happens where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # One that does not read must not hold us up; systemd that does not hear us will say so itself.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.setblocking(False)
        door.sendto("\n".join(words).encode(), address)
