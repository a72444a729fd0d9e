"""A server of a test: a thread answers each connection to a listening socket, one after the other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def answering(listening: socket.socket, answer: Callable[[socket.socket, Any], object]) -> Iterator[None]:
    """Answer to the end of the block.

    Args:
        answer: called with each connection, which is closed afterwards, and the address at its other end.
    """

    def serve() -> None:
        while True:
            try:
                connection, address = listening.accept()
            except OSError:
                return
            with connection:
                answer(connection, address)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
