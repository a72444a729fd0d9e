"""The HTTP server of the exporter: GET /metrics, for few clients at a time, in one thread.

One loop serves the clients and waits for the collectors, so that nothing is started by a process with threads, and a
client that is slow costs a few bytes until its time is over. All clients that ask at the same time get the same page.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Callable

from gpucluster.node_agent.exporter.exposition import CONTENT_TYPE, page
from gpucluster.node_agent.exporter.workers import Worker, Workers

#: Clients at a time; a further one is disconnected.
MOST_CLIENTS = 32
#: Seconds until the request is complete; and for sending the page.
REQUEST_S, ANSWER_S = 5.0, 10.0
#: A page serves all who ask so soon after it was made.
SAME_PAGE_S = 1.0
_MOST_REQUEST = 8192
# As a file of gzip.
_GZIP = 16 + zlib.MAX_WBITS
# The address may be missing while the machine boots.
_IP_FREEBIND = 15
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    until: float
    request: bytes = b""
    answer: memoryview = field(default_factory=lambda: memoryview(b""))
    waits: bool = False
    gzip: bool = False


class ExporterServer:
    """Serves the pages of these collectors.

    Args:
        allowed: addresses that get an answer; all addresses if there are none.
        extra: further samples of each page.
    """

    def __init__(
        self,
        listener: socket.socket,
        workers: Workers,
        allowed: Collection[str] = (),
        extra: Callable[[], list[str]] = list,
    ) -> None:
        self._listener, self._workers, self._allowed, self._extra = listener, workers, frozenset(allowed), extra
        self._selector = selectors.DefaultSelector()
        self._clients: set[_Client] = set()
        # The descriptors that are registered for workers.
        self._reading: dict[Worker, int] = {}
        self._collecting = False
        self._page, self._made = b"", -SAME_PAGE_S
        self._packed: bytes | None = None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the process is ended."""
        while True:
            self.step(60.0)

    def step(self, most: float) -> None:
        """Wait for the next event, at most so many seconds, and do what follows from it."""
        for key, events in self._selector.select(self._pause(most)):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Worker):
                # First: it may close its descriptor, and a new client get the same number.
                self._selector.unregister(self._reading.pop(key.data))
                key.data.read()
            elif events & selectors.EVENT_READ:
                self._read(key.data)
            else:
                self._write(key.data)
        self._look_at_workers()
        self._look_at_clients()

    def _pause(self, most: float) -> float:
        ends = [client.until for client in self._clients] + [worker.deadline for worker in self._reading]
        return max(0.0, min([most, *(end - time.monotonic() for end in ends)]))

    # --- clients -----

    def _accept(self) -> None:
        try:
            connection, (address, *_rest) = self._listener.accept()
        except OSError:
            # The client is gone, or there are no more descriptors: this loop must not turn without a pause.
            time.sleep(0.01)
            return
        if (self._allowed and address not in self._allowed) or len(self._clients) >= MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection, time.monotonic() + REQUEST_S)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(_MOST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(client)
            return
        client.request += data
        if b"\r\n\r\n" in client.request or b"\n\n" in client.request:
            self._answer(client)
        elif len(client.request) > _MOST_REQUEST:
            self._reply(client, 400, b"the request is too long\n")

    def _answer(self, client: _Client) -> None:
        head, *lines = client.request.decode("latin-1").splitlines()
        method, _space, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != "/metrics":
            self._reply(client, 404, b"there is only /metrics\n")
        elif method != "GET":
            self._reply(client, 405, b"there is only GET\n")
        else:
            accepted = [line for line in lines if line.lower().startswith("accept-encoding:")]
            client.gzip = any("gzip" in line.lower() and "gzip;q=0" not in line.lower() for line in accepted)
            client.waits = True
            # The collectors have limits of their own, and a page comes in any case.
            client.until = float("inf")
            # While it waits nothing is read of it, or it would keep the loop busy with what else it sends.
            self._selector.unregister(client.connection)
            if not self._collecting and time.monotonic() - self._made >= SAME_PAGE_S:
                self._collecting = True
                self._workers.begin()

    def _reply(self, client: _Client, status: int, body: bytes, encoding: str = "") -> None:
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"  # noqa: PLR2004 - of HTTP
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += f"Content-Encoding: {encoding}\r\n" if encoding else ""
        client.answer = memoryview((head + "Connection: close\r\n\r\n").encode() + body)
        client.waits, client.until = False, time.monotonic() + ANSWER_S
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)
        self._selector.register(client.connection, selectors.EVENT_WRITE, client)

    def _write(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.connection.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:
            self._forget(client)
            return
        if not client.answer:
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)
        with contextlib.suppress(OSError):
            client.connection.shutdown(socket.SHUT_WR)
        client.connection.close()

    def _look_at_clients(self) -> None:
        now = time.monotonic()
        for client in list(self._clients):
            if now >= client.until:
                self._forget(client)
            elif client.waits and not self._collecting:
                if client.gzip:
                    self._packed = self._packed or _packed(self._page)
                    self._reply(client, 200, self._packed, "gzip")
                else:
                    self._reply(client, 200, self._page)

    # --- collectors -----

    def _look_at_workers(self) -> None:
        if not self._collecting:
            return
        for descriptor in self._reading.values():
            self._selector.unregister(descriptor)
        self._reading = {worker: worker.descriptor for worker in self._workers.busy()}
        for worker, descriptor in self._reading.items():
            self._selector.register(descriptor, selectors.EVENT_READ, worker)
        if not self._reading:
            self._collecting = False
            self._page, self._packed = page([*self._workers.lines(), *self._extra()]).encode(), None
            self._made = time.monotonic()


def _packed(data: bytes) -> bytes:
    packer = zlib.compressobj(level=1, wbits=_GZIP)
    return packer.compress(data) + packer.flush()


def listen(address: str, port: int) -> socket.socket:
    """A listening socket, also of an address that comes later.

    Raises:
        OSError: the address or the port can't be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
        listener.bind((address, port))
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def address_toward(other: str) -> str:
    """The address of this host with which it reaches another one. Nothing is sent.

    Raises:
        OSError: no route leads there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((other, 9))
        address: str = asking.getsockname()[0]
    return address
