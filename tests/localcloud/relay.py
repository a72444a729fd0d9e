"""A test double between a client and the local cloud: forwards every request, and may change a response."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.waiting import PATIENCE_S

_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass
class Answer:
    """The response that the client gets."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Relay:
    """Its endpoint, and the change of a response: `change(path, answer)`."""

    endpoint: str
    change: Callable[[str, Answer], None] = field(default=lambda path, answer: None)


@contextmanager
def relaying(endpoint: str) -> Iterator[Relay]:
    """A relay to `endpoint`, closed at the end."""
    there = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            onward = http.client.HTTPConnection(there, timeout=PATIENCE_S)
            try:
                onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    onward.putheader(name, value)
                onward.endheaders(body or None)
                said = onward.getresponse()
                answer = Answer(said.status, {k.lower(): v for k, v in said.getheaders()}, said.read())
            finally:
                onward.close()
            relay.change(self.path, answer)
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name not in _HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = _pass  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    relay = Relay(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
