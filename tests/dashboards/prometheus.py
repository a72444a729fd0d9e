"""A real Prometheus that scrapes recorded outputs of exporters from a small HTTP server, with the real rules."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.addresses import free_port
from tests.dashboards import promtool
from tests.waiting import PATIENCE_S, wait_for

_SAMPLE = re.compile(r"^(?P<series>(?P<name>[a-zA-Z_:][\w:]*)(\{.*\})?) (?P<value>\S+)$")


def moving(text: str, seconds: float) -> str:
    """A recorded output some seconds later: its counters have grown, and `@NOW@` is the present."""
    counters = {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" counter")
    }
    lines = []
    for line in text.replace("@NOW@", f"{time.time():.3f}").splitlines():
        found = _SAMPLE.match(line)
        if found and found["name"] in counters:
            value = float(found["value"])
            lines.append(f"{found['series']} {value + seconds * max(1.0, value / 1000)}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


@contextmanager
def outputs(pages: Mapping[str, str]) -> Iterator[int]:
    """Serve outputs by their paths. Yields the port."""
    began = time.time()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            if page is not None:
                self.wfile.write(moving(page, time.time() - began).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Prometheus:
    """The HTTP interface of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, **arguments: str) -> Any:
        """An answer's data. An error of the query is an AssertionError with its text."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode(errors='replace')}") from error

    def query(self, expr: str) -> list[Any]:
        """The series that an expression returns now."""
        found: list[Any] = self.ask("query", query=expr)["result"]
        return found

    def await_series(self, expressions: list[str]) -> None:
        """Wait until each of the expressions returns series: Prometheus scrapes and evaluates every second."""
        left = list(expressions)

        def none_left() -> bool:
            left[:] = [expr for expr in left if not self.query(expr)]
            return not left

        wait_for("each expression returns series", none_left, interval=0.2, state=lambda: left)


@contextmanager
def running(folder: Path, targets: Mapping[str, list[dict[str, Any]]]) -> Iterator[Prometheus]:
    """A Prometheus with the real rules.

    Args:
        targets: by the name of the scrape's job, entries of Prometheus' `static_configs` with a key `path`.
    """
    port = free_port()
    scrapes = [
        {
            "job_name": job,
            # Series of the controller name other nodes: those labels are the exporter's.
            "honor_labels": True,
            "relabel_configs": [{"source_labels": ["path"], "target_label": "__metrics_path__"},
                                {"regex": "path", "action": "labeldrop"}],
            "static_configs": [
                {"targets": entry["targets"], "labels": {**entry["labels"], "path": entry["path"]}} for entry in entries
            ],
        }
        for job, entries in targets.items()
    ]  # fmt: skip
    scrapes.append(
        {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"node": "ctl"}}]}
    )
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in promtool.FILES],
        "scrape_configs": scrapes,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            said = (folder / "log").read_text
            wait_for("Prometheus is ready", lambda: _ready(child, port), interval=0.1, state=said, ignore=OSError)
            assert child.poll() is None, said()
            yield Prometheus(port)
        finally:
            child.terminate()
            child.wait()


def _ready(child: subprocess.Popen[bytes], port: int) -> bool:
    """Whether there is nothing to wait for any more."""
    if child.poll() is not None:
        return True
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S):
        return True
