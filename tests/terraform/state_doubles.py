"""Doubles for places that keep Terraform's state: just enough of a protocol for Terraform itself to be content.

They prove that what we write reaches Terraform and works; they do not prove anything about a real service: no service's
signature or password is checked beyond being there. Over http a locked state is written only with the lock's ID, as
GitLab has it; in S3's dialect an object is not replaced where the request forbids it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class StateDouble(ThreadingHTTPServer):
    """Objects by path, a lock by path, and who asked.

    Args:
        s3: speak S3's dialect (XML, a bucket in the path) and not that of Terraform's http backend.
    """

    daemon_threads = True

    def __init__(self, *, s3: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.s3 = s3
        self.objects: dict[str, bytes] = {}
        self.locks: dict[str, bytes] = {}
        self.authorizations: set[str] = set()
        self.headers_seen: list[dict[str, str]] = []
        self.failing = self.read_only = False
        self.reads = 0
        #: PUT, LOCK and UNLOCK, in the order in which they were accepted.
        self.changes: list[str] = []

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Terraform may leave in the middle of a connection; that is normal."""

    def lock(self, path: str, ocid: str = "0a1b2c3d-held") -> None:
        """Hold a lock as another machine would."""
        info = {"ID": ocid, "Operation": "OperationTypeApply", "Who": "ada@elsewhere", "Version": "1.11.4"}
        self.locks[path] = json.dumps({**info, "Created": "2026-01-02T03:04:05Z", "Info": "", "Path": ""}).encode()


@contextmanager
def serving(*, s3: bool = False) -> Iterator[StateDouble]:
    """A double that answers, until the block ends."""
    double = StateDouble(s3=s3)
    thread = threading.Thread(target=double.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield double
    finally:
        double.shutdown()
        thread.join()
        double.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: StateDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _begin(self) -> tuple[str, bytes]:
        self.server.authorizations.add(self.headers.get("authorization", ""))
        self.server.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
        return urlsplit(self.path).path, self.rfile.read(int(self.headers.get("content-length") or 0))

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path, _ = self._begin()
        self.server.reads += 1
        if self.server.failing:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif path in self.server.objects:
            self._answer(200, self.server.objects[path])
        elif self.server.s3 and path.count("/") == 1:
            self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET  # noqa: N815 - the standard library's name

    def do_PUT(self) -> None:
        path, body = self._begin()
        if self.server.failing or self.server.read_only:
            self._answer(403)
            return
        held = self.server.locks.get(path)
        if held and json.loads(held)["ID"] not in parse_qs(urlsplit(self.path).query).get("ID", ()):
            self._answer(409, b"the state is locked")
            return
        if self.headers.get("if-none-match") == "*" and path in self.server.objects:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.server.objects[path] = body
        self.server.changes.append("PUT")
        self._answer(200)

    do_POST = do_PUT  # noqa: N815 - the standard library's name

    def do_DELETE(self) -> None:
        path, _ = self._begin()
        self.server.objects.pop(path, None)
        self._answer(204)

    def do_LOCK(self) -> None:
        path, body = self._begin()
        held = self.server.locks.setdefault(path, body)
        if held is body:
            self.server.changes.append("LOCK")
        self._answer(200 if held is body else 423, held)

    def do_UNLOCK(self) -> None:
        path, _ = self._begin()
        self.server.changes.append("UNLOCK")
        self.server.locks.pop(path, None)
        self._answer(200)
