"""Reports the service's state to systemd: one datagram to the socket that NOTIFY_SOCKET names (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*words: str) -> None:
    """Send words such as READY=1, WATCHDOG=1, STOPPING=1 or STATUS=...; does nothing without systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    # A reader that does not read must not block the service; systemd reports a missing WATCHDOG=1 itself.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto("\n".join(words).encode(), address)
