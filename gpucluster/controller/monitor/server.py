"""GET /metrics on the loopback device."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

from gpucluster.node_agent.exporter.exposition import CONTENT_TYPE

#: Clients at a time; a further one is disconnected. Seconds for a request and for each part of its answer.
_CLIENTS, _SECONDS = 16, 10.0


class MetricsServer(ThreadingHTTPServer):
    """Answers /metrics with a page.

    Raises:
        OSError: the address or the port can't be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], page: Callable[[], bytes]) -> None:
        self.page = page
        self._places = threading.BoundedSemaphore(_CLIENTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each client, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are nothing to write about."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server: MetricsServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        content = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the library
        """Nothing: a line for each scrape would fill the journal."""
