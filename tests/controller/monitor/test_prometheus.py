"""The client of Prometheus: servers that hang, drip and lie."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.controller.monitor import prometheus
from tests.waiting import PATIENCE_S


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
