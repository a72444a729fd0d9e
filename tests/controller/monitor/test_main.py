"""Questions to a real Prometheus, and requests that are refused."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpucluster.controller.monitor import __main__ as monitor
from gpucluster.node_agent.errors import Refused
from tests.addresses import free_port
from tests.controller.monitor import real_prometheus
from tests.controller.monitor.real_prometheus import Running
from tests.waiting import wait_for


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
        # Once it was up. A busy machine may not answer each scrape within its second.
        {"name": "now", "expr": "max_over_time(up[1h])"},
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
