"""Questions to Prometheus: a real one, and servers that hang, drip and lie."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.monitor import __main__ as monitor
from gpucluster.controller.monitor import prometheus
from gpucluster.node_agent.errors import Refused
from tests.addresses import free_port
from tests.controller.monitor import real_prometheus
from tests.controller.monitor.real_prometheus import Running
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    port = free_port()
    scrape = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: itself
  static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{node: "a\\"b|c"}}}}]
"""
    with real_prometheus.prometheus(tmp_path_factory.mktemp("prometheus"), scrape, port=port) as found:
        wait_for("a scrape", lambda: found.get("/api/v1/query?query=up==1")["result"])
        yield found


def query(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: int, request: Any
) -> tuple[int, Any, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(request if isinstance(request, str) else json.dumps(request)))
    status = monitor.main(["query", "--port", str(port)])
    said = capsys.readouterr()
    return status, json.loads(said.out) if said.out else None, said.err


@pytest.mark.slow
def test_instants_ranges_scalars_and_faults_come_by_their_names(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # never used for this host
    now = time.time()
    queries: list[dict[str, Any]] = [
        {"name": "now", "expr": "up"},
        {"name": "then", "expr": "up", "time": now},
        {"name": "range", "expr": "vector(3)", "start": now - 10, "end": now, "step": 5},
        {"name": "number", "expr": "scalar(vector(2))"},
        {"name": "gaps", "expr": "vector(0) / 0", "start": now - 10, "end": now, "step": 5},
        {"name": "wrong", "expr": "sum(("},
    ]
    status, said, _ = query(monkeypatch, capsys, running.port, {"queries": queries})
    assert (status, said["prometheus"], said["why"]) == (0, True, "")
    results = said["results"]
    (series,) = results["now"]
    assert series["labels"]["node"] == 'a"b|c'
    assert [value for _, value in series["values"]] == [1.0]
    assert [value for _, value in results["range"][0]["values"]] == [3.0, 3.0, 3.0]
    assert [value for _, value in results["number"][0]["values"]] == [2.0]
    assert results["gaps"] == [{"labels": {}, "values": []}]
    assert set(results) | set(said["errors"]) == {each["name"] for each in queries}
    assert "parse error" in said["errors"]["wrong"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("no json", "is not JSON"),
        ("[]", "no list `queries`"),
        ({"queries": [1]}, "is an object"),
        ({"queries": [{"name": "a"}]}, "a name and an expr"),
        ({"queries": [{"name": "a", "expr": "up", "time": "x"}]}, "time of the query a is not a number"),
        ({"queries": [{"name": "a", "expr": "up", "start": 1}]}, "start, end and step together"),
        ({"queries": [{"name": "a", "expr": "up", "start": 5, "end": 1, "step": 1}]}, "ends before it starts"),
        ({"queries": [{"name": "a", "expr": "up"}] * 2}, "the same name"),
        ({"queries": [{"name": "a", "expr": "u" * 30_000}]}, "letters"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_bad_requests_are_refused(
    request_: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, wrong = query(monkeypatch, capsys, 1, request_)
    assert (status, said) == (Refused.status, None)
    assert words in wrong


def test_where_no_program_listens_it_reports_this(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    status, said, _ = query(monkeypatch, capsys, port, {"queries": [{"name": "a", "expr": "up"}]})
    assert (status, said["prometheus"], said["results"]) == (0, False, {})
    assert "does not answer" in said["why"]


@contextlib.contextmanager
def server(parts: list[bytes], pause: float) -> Iterator[int]:
    """A double of Prometheus that sends these bytes with a pause after each, and then nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    for part in parts:
                        connection.sendall(part)
                        ended.wait(pause)
                    ended.wait()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        listener.close()


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "most"),
    [([], 1000), ([_HEAD, *[b" "] * 300], 1000), ([_HEAD, b" " * 2000], 1000)],
    ids=["hangs", "drips", "is too long"],
)
def test_a_prometheus_that_hangs_or_drips_is_not_waited_for(parts: list[bytes], most: int) -> None:
    with server(parts, 0.05) as port:
        found = prometheus.answer(
            prometheus.Prometheus(port=port, seconds=0.5, bytes_limit=most), [prometheus.Query("a", "up")]
        )
    assert found["prometheus"] is False
    assert found["why"]


def test_what_is_not_an_answer_of_prometheus_is_an_error(tmp_path: Path) -> None:
    text = b"<html>502 Bad Gateway</html>"
    head = f"HTTP/1.1 502 Bad\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    with server([head + text], 0) as port:
        found = prometheus.answer(prometheus.Prometheus(port=port, seconds=PATIENCE_S), [])
    assert found["prometheus"] is False
    assert "502" in found["why"]
