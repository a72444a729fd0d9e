"""The HTTP server of programs on the controller: a limit for the number of clients and for the time of each.

The exporter of a node has a server of its own (`gpucluster.node_agent.exporter.server`), in one thread: it forks, which
a process with threads must not.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, NamedTuple

from gpucluster.node_agent.exporter.exposition import CONTENT_TYPE

# Seconds without a byte of a client, at most.
_SILENCE_S = 60.0
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


class ServerLimits(NamedTuple):
    """The limits of a server.

    Attributes:
        clients: at a time. A further one gets status 503, and asks again.
        clients_per_address: of them, from one address.
        request_s: seconds until the request is complete.
        answer_s: seconds for the whole answer.
    """

    clients: int
    clients_per_address: int
    request_s: float
    answer_s: float


class _Client(NamedTuple):
    """A client that is served, and until when (time.monotonic)."""

    address: str
    until: float


class BoundedServer(ThreadingHTTPServer):
    """One thread per client, within limits.

    Raises:
        OSError: the address or the port can't be used.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler], limits: ServerLimits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._clients: dict[Any, _Client] = {}
        super().__init__(address, handler)

    @property
    def clients(self) -> int:
        """How many have a place."""
        return len(self._clients)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the client, unless there are too many."""
        address, limits = client_address[0], self.limits
        with self._lock:
            addresses = [client.address for client in self._clients.values()]
            accepted = len(addresses) < limits.clients and addresses.count(address) < limits.clients_per_address
            if accepted:
                self._clients[request] = _Client(address, time.monotonic() + limits.request_s)
        if accepted:
            super().process_request(request, client_address)
        else:
            with contextlib.suppress(OSError):  # the client is gone
                request.setblocking(False)
                request.send(_BUSY)
            self.shutdown_request(request)

    def request_complete(self, request: Any) -> None:
        """The request is complete: from now on the limit for the answer counts."""
        with self._lock:
            self._clients[request] = self._clients[request]._replace(until=time.monotonic() + self.limits.answer_s)

    def service_actions(self) -> None:
        """Called every half second: cut off clients whose time is over, which ends their threads."""
        with self._lock:
            for request, client in self._clients.items():
                if time.monotonic() > client.until:
                    with contextlib.suppress(OSError):  # the client is gone
                        request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget the client: another one can be served."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a client that disconnects is not an error."""


class BoundedHandler(BaseHTTPRequestHandler):
    """One request of a client."""

    server: BoundedServer
    timeout = _SILENCE_S
    server_version, sys_version = "gpucluster", ""

    def send_headers(self, content_type: str, length: int) -> None:
        """Send status 200, and what the content is."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: the journal is for errors."""


class MetricsServer(BoundedServer):
    """Answers GET /metrics with a page.

    Args:
        page: makes it, in the text format of Prometheus.
    """

    def __init__(self, address: tuple[str, int], page: Callable[[], bytes]) -> None:
        self.page = page
        limits = ServerLimits(clients=16, clients_per_address=16, request_s=5.0, answer_s=10.0)
        super().__init__(address, _MetricsHandler, limits)


class _MetricsHandler(BoundedHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        self.server.request_complete(self.request)
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        content = self.server.page()
        self.send_headers(CONTENT_TYPE, len(content))
        self.wfile.write(content)
