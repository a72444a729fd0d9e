"""The exporter as a service: real sockets; clients that are slow, many or strangers; the command as hosts have it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from gpucluster.agent.exporter import __main__ as command
from gpucluster.agent.exporter import server as module
from gpucluster.agent.exporter.collect import Place, Spec
from gpucluster.agent.exporter.exposition import CONTENT_TYPE, sample
from gpucluster.agent.exporter.server import Server, address_toward, listen
from gpucluster.agent.exporter.workers import Workers
from tests.agent.exporter.test_workers import Made
from tests.agent.exporter.trees import IB, IRDMA, MLX5, port, write
from tests.agent.exposition import having, of, series
from tests.agent.zipapp import install


class Running:
    """A server in a thread of the test."""

    def __init__(self, specs: dict[str, Spec], allowed: Iterable[str] = ()) -> None:
        listener = listen("127.0.0.1", 0)
        self.port: int = listener.getsockname()[1]
        self._listener, self._workers = listener, Workers(specs, Place())
        self.server = Server(listener, self._workers, list(allowed))
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
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.read(), answer.headers

    def raw(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(data)
        return connection


def counting(folder: Path, pause: float = 0.0) -> Spec:
    """A collector that counts how often it was asked."""

    def samples(_subject: str) -> list[str]:
        with open(folder / "asked", "a") as file:
            file.write("x")
        time.sleep(pause)
        return [sample("gpucluster_job_node", 1, job_id="12")]

    return Spec(lambda _place: Made(lambda: ["a"], samples), 30.0, 100)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*, pause: float = 0.0, allowed: Iterable[str] = ()) -> Running:
        running.append(Running({"one": counting(tmp_path, pause)}, allowed))
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
    running = run(pause=0.5)
    threads = [threading.Thread(target=running.get) for _ in range(10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (tmp_path / "asked").read_text() == "x"


def test_many_scrapes_cost_one_a_second(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run()
    begin = time.monotonic()
    for _ in range(50):
        running.get()
    assert len((tmp_path / "asked").read_text()) <= 2 + time.monotonic() - begin


def test_a_stranger_is_disconnected(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run(allowed=["192.0.2.7"])
    with running.raw(b"") as connection:
        assert everything(connection) == b""
    assert not (tmp_path / "asked").exists()


def test_slow_clients_lose_their_time_and_nobody_else_does(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.5)
    running = run()
    slow = [running.raw(b"GET /metr") for _ in range(10)]
    running.get()
    assert all(everything(each) == b"" for each in slow)


def test_a_client_that_reads_nothing_is_forgotten(run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    monkeypatch.setattr(module, "page", lambda _lines: "x" * (64 << 20))
    running = run()
    with running.raw(b"GET /metrics HTTP/1.1\r\n\r\n"):
        until = time.monotonic() + 60
        while not running.server._clients:
            assert time.monotonic() < until
            time.sleep(0.01)
        while running.server._clients:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_clients_at_a_time_are_limited(run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 4)
    running = run()
    held = [running.raw(b"GET") for _ in range(4)]
    until = time.monotonic() + 60
    while len(running.server._clients) < 4:
        assert time.monotonic() < until
        time.sleep(0.01)
    with running.raw(b"") as further:
        assert everything(further) == b""
    for each in held:
        each.close()
    while running.server._clients:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert running.get()


@pytest.mark.parametrize(
    "data", [b"\0" * 20_000, b"\xff\r\n\r\n", b"\r\n\r\n", b"GET  HTTP\n\n", b"GET " + b"/" * 20_000]
)
def test_what_is_no_request_is_answered_or_disconnected(data: bytes, run: Callable[..., Running]) -> None:
    running = run()
    with running.raw(b"") as connection:
        try:
            connection.sendall(data)
            answer = everything(connection)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert running.get()


def test_clients_that_leave_while_they_wait_cost_nothing(run: Callable[..., Running]) -> None:
    running = run(pause=0.3)
    for _ in range(5):
        running.raw(b"GET /metrics HTTP/1.1\r\n\r\n").close()
    assert running.get()


# --- the command -----


def agent(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-I", str(install(folder)), "exporter", *words]


def host(folder: Path) -> list[str]:
    """Options for a host with RDMA devices of two vendors and a job."""
    port(folder / "sys", "mlx5_0", IB, MLX5)
    port(folder / "sys", "irdma0", (), IRDMA)
    write(folder / "jobs/12.json", json.dumps({"version": 1, "job_id": "12", "gpus": ["0"]}))
    return [f"--sysfs-root={folder / 'sys'}", f"--proc-root={folder / 'proc'}", f"--jobs={folder / 'jobs'}"]


def test_the_command_prints_a_page(tmp_path: Path) -> None:
    done = subprocess.run(agent(tmp_path, "--once", *host(tmp_path)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = series(done.stdout)
    assert of(found, "gpucluster_job_gpu", job_id="12", gpu="0", uuid="") == 1
    assert set(having(found, "gpucluster_exporter_collector_up").values()) == {1}
    assert of(found, "gpucluster_rdma_received_bytes_total", device="mlx5_0", port="1") == 4 * IB.index("port_rcv_data")
    if shutil.which("promtool"):
        # What the linter finds of names that were chosen so; it ends with 1 where it can't read the page.
        said = subprocess.run(
            ["promtool", "check", "metrics"], input=done.stdout, capture_output=True, text=True, check=False
        )
        named = {
            line.split()[0] for line in said.stderr.splitlines() if line.endswith("should not include type 'counter'")
        }
        assert named == {"gpucluster_rdma_counter_total"}, said
        assert (said.returncode, len(said.stderr.splitlines())) == (3, len(named)), said


def test_the_command_writes_a_file_for_node_exporter(tmp_path: Path) -> None:
    file = tmp_path / "out.prom"
    file.write_text("old")
    words = [f"--textfile={file}", *host(tmp_path)]
    assert subprocess.run(agent(tmp_path, *words), check=False).returncode == 0
    assert of(series(file.read_text()), "gpucluster_job_node", job_id="12") == 1
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir() if "out.prom" in each.name] == ["out.prom"]
    done = subprocess.run(agent(tmp_path, f"--textfile={tmp_path}/none/x"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/none/" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_serves_until_it_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    words = ["serve", f"--listen=:{number}", "--toward=127.0.0.1", "--allow=127.0.0.1", *host(tmp_path)]
    started = subprocess.Popen(agent(tmp_path, *words), start_new_session=True)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics", timeout=30) as answer:
                    found = series(answer.read().decode())
                break
            except urllib.error.URLError:
                assert time.monotonic() < until
                assert started.poll() is None
                time.sleep(0.05)
        assert of(found, "gpucluster_job_node", job_id="12") == 1
        workers = [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == started.pid]
        assert len(workers) == 3
    finally:
        started.terminate()
        assert started.wait(timeout=60) == -15
    while any(Path("/proc", str(pid)).exists() for pid in workers):
        assert time.monotonic() < until, "a collector outlives the exporter"
        time.sleep(0.02)


def _parent(pid: int) -> int:
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 2), (["--once", "serve"], 2), (["serve"], 2), (["serve", "--listen=x"], 2), (["serve", "--listen=:1"], 2),
        (["--once", "--collectors=nosuch"], 2), (["serve", "--listen=192.0.2.1:1", "--toward=x"], 2),
        (["serve", "--listen=1.2.3.4.5:80"], 1), (["serve", "--listen=127.0.0.1:99999"], 1),
        (["--address-toward=nowhere.invalid"], 1),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_words(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = command.main(words)
    except SystemExit as ended:
        found = int(str(ended.code))
    assert found == status
    assert "gpucluster-agent exporter" in capsys.readouterr().err


def test_the_collector_of_gpus_runs_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    write(tool, "#!/bin/sh\necho '0, GPU-1, 97, 1024, 143771, 612.45, 61'\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert command.main(["--once", "--collectors=gpu"]) == 0
    assert "gpucluster_gpu_power_watts" in capsys.readouterr().out
    assert command.main(["--once"]) == 0
    assert "gpucluster_gpu_" not in capsys.readouterr().out


def test_the_address_is_the_one_that_the_other_host_sees() -> None:
    assert address_toward("127.0.0.1") == "127.0.0.1"
