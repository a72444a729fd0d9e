"""The bounded HTTP server, by that of releases: places for a few clients, and which of them lose theirs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import release_server as server_program
from tests.waiting import PATIENCE_S, wait_for


@contextlib.contextmanager
def serving(folder: Path, **limits: Any) -> Iterator[Any]:
    listener = server_program.ReleaseServer("127.0.0.1", 0, folder, server_program.LIMITS._replace(**limits))
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def connected(listener: Any, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.server_port), timeout=PATIENCE_S, source_address=(source, 0))


def until_it_ends(client: socket.socket, drip: bytes = b"") -> bytes:
    """The response until the server closes the connection; meanwhile `drip` is sent again and again."""
    client.setblocking(False)
    said = b""

    def ended() -> bool:
        nonlocal said
        try:
            if drip:
                client.send(drip)
            part = client.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            return True
        said += part
        return not part

    wait_for("the server closes the connection", ended, interval=0.01)
    return said


def await_no_client(listener: Any) -> None:
    wait_for("no client has a place", lambda: not listener.clients, interval=0.01, state=lambda: listener.clients)


def test_one_address_does_not_take_all_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    limits = {"clients": 5, "clients_per_address": 3, "request_s": PATIENCE_S}
    with serving(tmp_path, **limits) as listener, contextlib.ExitStack() as held:
        # Those of other tests may end meanwhile.
        before = set(threading.enumerate())
        greedy = [held.enter_context(connected(listener)) for _ in range(20)]
        assert [until_it_ends(client)[9:12] for client in greedy[3:]] == [b"503"] * 17
        assert len(set(threading.enumerate()) - before) == 3, "a client without a place has a thread"
        other = held.enter_context(connected(listener, "127.0.0.2"))
        other.sendall(b"GET /file HTTP/1.0\r\n\r\n")
        assert until_it_ends(other).endswith(b"content")
        more = [held.enter_context(connected(listener, f"127.0.0.{number}")) for number in (3, 4, 5)]
        assert until_it_ends(more[2])[9:12] == b"503", "there are more clients than places"


@pytest.mark.parametrize("drip", [b"", b"G", b"GET /file HTTP/1.0\r\nA: b\r\n"], ids=["silent", "word", "headers"])
def test_who_does_not_ask_loses_the_place(tmp_path: Path, drip: bytes) -> None:
    with serving(tmp_path, request_s=0.1) as listener, connected(listener) as client:
        assert b"200" not in until_it_ends(client, drip)
        await_no_client(listener)


def test_who_does_not_read_loses_the_place(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    with serving(tmp_path, answer_s=0.1) as listener, connected(listener) as client:
        client.sendall(b"GET /file HTTP/1.0\r\n\r\n")
        assert client.recv(12).endswith(b"200")
        await_no_client(listener)
