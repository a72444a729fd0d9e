"""The exporter as a service: real sockets; clients that are slow, many or strangers."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest

from gpucluster.node_agent.exporter import server as module
from gpucluster.node_agent.exporter.collect import Place, Spec
from gpucluster.node_agent.exporter.exposition import CONTENT_TYPE, sample
from gpucluster.node_agent.exporter.server import ExporterServer, address_toward, listen
from gpucluster.node_agent.exporter.workers import Workers
from tests.doubles.clock import LateTime
from tests.node_agent.exporter.test_workers import Made
from tests.node_agent.exposition import of, series
from tests.waiting import PATIENCE_S, wait_for


class Running:
    """A server in a thread of the test."""

    def __init__(self, specs: dict[str, Spec], allowed: Iterable[str] = ()) -> None:
        listener = listen("127.0.0.1", 0)
        self.port: int = listener.getsockname()[1]
        self._listener, self._workers = listener, Workers(specs, Place())
        self.server = ExporterServer(listener, self._workers, list(allowed))
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            self.server.step(0.05)

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self._workers.close()
        self._listener.close()

    def get(self, path: str = "/metrics", **headers: str) -> tuple[bytes, Any]:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.read(), answer.headers

    def clients(self, *, waiting: bool = False) -> int:
        """How many are connected; or, of these, how many wait for a page."""
        return sum(each.waits or not waiting for each in set(self.server._clients))

    def raw(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection.sendall(data)
        return connection


def counting(folder: Path, *, held: bool = False) -> Spec:
    """A collector that counts how often it was asked.

    Args:
        held: it answers when the test writes to the pipe `go`.
    """

    def samples(_subject: str) -> list[str]:
        with open(folder / "asked", "a") as file:
            file.write("x")
        if held:
            (folder / "go").read_text()
        return [sample("gpucluster_job_node", 1, job_id="12")]

    return Spec(lambda _place: Made(lambda: ["a"], samples), 10 * PATIENCE_S, 100)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> LateTime:
    """The server's time, which the test alone moves: on a busy machine a client may be late with each word."""
    made = LateTime()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*, held: bool = False, allowed: Iterable[str] = ()) -> Running:
        if held:
            os.mkfifo(tmp_path / "go")
        running.append(Running({"one": counting(tmp_path, held=held)}, allowed))
        return running[-1]

    yield start
    for each in running:
        each.close()


def everything(connection: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


def test_a_page_is_served(run: Callable[..., Running]) -> None:
    text, headers = run().get()
    assert headers["Content-Type"] == CONTENT_TYPE
    assert of(series(text.decode()), "gpucluster_job_node", job_id="12") == 1


def test_a_page_is_packed_for_those_who_can_unpack_it(run: Callable[..., Running]) -> None:
    running = run()
    text, headers = running.get(**{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert of(series(gzip.decompress(text).decode()), "gpucluster_job_node", job_id="12") == 1
    assert "Content-Encoding" not in running.get(**{"Accept-Encoding": "gzip;q=0"})[1]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("GET /", 404), ("GET /metrics/../etc/passwd", 404), ("POST /metrics", 405), ("HEAD /metrics", 405), ("x", 404)],
)
def test_there_is_nothing_else(request_line: str, status: int, run: Callable[..., Running], tmp_path: Path) -> None:
    answer = everything(run().raw(f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert not (tmp_path / "asked").exists()


def test_those_who_ask_at_the_same_time_get_one_page(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run(held=True)
    with ThreadPoolExecutor(10) as asking:
        answers = [asking.submit(running.get) for _ in range(10)]
        wait_for("all of them wait", lambda: running.clients(waiting=True) == 10)
        (tmp_path / "go").write_text("")
    assert len({each.result()[0] for each in answers}) == 1
    assert (tmp_path / "asked").read_text() == "x"


def test_many_scrapes_cost_one_a_second(run: Callable[..., Running], tmp_path: Path, clock: LateTime) -> None:
    running = run()
    for asked in ("x", "xx", "xxx"):
        for _ in range(10):
            running.get()
        clock.now += 0.99 * module.SAME_PAGE_S
        running.get()
        assert (tmp_path / "asked").read_text() == asked
        clock.now += 0.02 * module.SAME_PAGE_S


def test_a_stranger_is_disconnected(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run(allowed=["192.0.2.7"])
    with running.raw(b"") as connection:
        assert everything(connection) == b""
    assert not (tmp_path / "asked").exists()


def test_slow_clients_lose_only_their_own_time(run: Callable[..., Running], clock: LateTime) -> None:
    running = run()
    slow = [running.raw(b"GET /metr") for _ in range(10)]
    wait_for("they are all connected", lambda: running.clients() == 10)
    clock.now += 0.9 * module.REQUEST_S
    assert running.get()
    wait_for("the slow ones alone are connected", lambda: running.clients() == 10)
    clock.now += 0.2 * module.REQUEST_S
    assert all(everything(each) == b"" for each in slow)


def test_a_client_that_reads_nothing_is_forgotten(
    run: Callable[..., Running], clock: LateTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "page", lambda _lines: "x" * (64 << 20))
    running = run()
    with running.raw(b"GET /metrics HTTP/1.1\r\n\r\n"):
        wait_for("the page is being sent", lambda: any(each.answer for each in set(running.server._clients)))
        clock.now += 1.1 * module.ANSWER_S
        wait_for("the client is forgotten", lambda: not running.clients())


def test_clients_at_a_time_are_limited(run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 4)
    running = run()
    held = [running.raw(b"GET") for _ in range(4)]
    wait_for("the four are connected", lambda: running.clients() == 4)
    with running.raw(b"") as further:
        assert everything(further) == b""
    for each in held:
        each.close()
    wait_for("the four are forgotten", lambda: not running.clients())
    assert running.get()


@pytest.mark.parametrize(
    "data", [b"\0" * 20_000, b"\xff\r\n\r\n", b"\r\n\r\n", b"GET  HTTP\n\n", b"GET " + b"/" * 20_000]
)
def test_what_is_not_a_request_is_answered_or_disconnected(data: bytes, run: Callable[..., Running]) -> None:
    running = run()
    with running.raw(b"") as connection:
        try:
            connection.sendall(data)
            answer = everything(connection)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert running.get()


def test_clients_that_leave_while_they_wait_cost_nothing(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run(held=True)
    leaving = [running.raw(b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(5)]
    wait_for("the five wait", lambda: running.clients(waiting=True) == 5)
    for each in leaving:
        each.close()
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(running.get)
        wait_for("one more waits", lambda: running.clients(waiting=True) == 6)
        (tmp_path / "go").write_text("")
    assert answer.result()
    wait_for("all are forgotten", lambda: not running.clients())


# --- the command -----


def test_the_address_is_the_one_that_the_other_host_sees() -> None:
    assert address_toward("127.0.0.1") == "127.0.0.1"
