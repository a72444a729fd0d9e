"""Clients that send no whole request, read no answer, or open too many connections."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import oci
import pytest
import uvicorn

from gpucluster.localcloud.server.connections import Bounds, Connections, allow_files
from tests.waiting import PATIENCE_S

ASK = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
LARGE = 16 * 1024 * 1024
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def application(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    """Reads the request whole, and answers: with much, where it is asked for."""
    while (await receive()).get("more_body"):
        pass
    body = b"x" * LARGE if scope["path"] == "/large" else b"yes"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose clock a test moves on, instead of waiting."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def run(attack: Callable[[_Loop], Coroutine[Any, Any, None]]) -> None:
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(attack(loop))


@asynccontextmanager
async def serving(bounds: Bounds) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """A server with these bounds, and a function that connects to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    protocol = Connections(bounds).protocol()
    config = uvicorn.Config(
        application, http=protocol, ws="none", log_config=None, lifespan="off", timeout_keep_alive=bounds.idle_seconds
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    opened: list[Client] = []

    async def connect() -> Client:
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        return opened[-1]

    try:
        yield connect
    finally:
        for _, writer in opened:
            writer.transport.abort()
        server.should_exit = True
        await task


async def answer(client: Client) -> bytes:
    """What is read until the server closes the connection, or for a whole answer."""
    head = await client[0].readuntil(b"\r\n\r\n")
    return head.partition(b"\r\n")[0] + b" " + await client[0].readexactly(3)


async def seen_by(connect: Callable[[], Awaitable[Client]]) -> None:
    """Return when the server has read all that was sent before: it answers to a connection that comes later."""
    client = await connect()
    client[1].write(ASK)
    assert await answer(client) == OK


async def end_of(client: Client) -> bool:
    """Waits until the server has closed the connection."""
    try:
        return await client[0].read(1) == b""
    except ConnectionResetError:
        return True


async def closed(client: Client) -> bool:
    """The same, with an end; by the clock that a test moves on."""
    return await asyncio.wait_for(end_of(client), PATIENCE_S)


OK = b"HTTP/1.1 200 OK yes"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Slow: ", POST, ASK + b"GET /again HT"], ids=str)
def test_a_request_must_end_in_time(sent: bytes) -> None:
    async def attack(loop: _Loop) -> None:
        async with serving(Bounds(request_seconds=1000, idle_seconds=1000)) as connect:
            client = await connect()
            client[1].write(sent)
            if sent.startswith(ASK):
                assert await answer(client) == OK
            await seen_by(connect)
            loop.ahead += 1001
            assert await closed(client)

    run(attack)


def test_a_connection_waits_longer_for_a_further_request_than_any_client_pauses() -> None:
    longest = oci.retry.DEFAULT_RETRY_STRATEGY.max_wait_between_calls_seconds

    async def pause(loop: _Loop) -> None:
        async with serving(Bounds()) as connect:
            client = await connect()
            for _ in range(3):
                client[1].write(ASK)
                assert await answer(client) == OK
                await seen_by(connect)
                loop.ahead += longest + 1

    run(pause)
    assert Bounds().idle_seconds > 2 * longest


def test_one_byte_at_a_time_does_not_win_time() -> None:
    async def attack(loop: _Loop) -> None:
        async with serving(Bounds(request_seconds=1000)) as connect:
            client = await connect()
            client[1].write(b"GET / HTTP/1.1\r\n")
            ended = asyncio.create_task(end_of(client))
            for byte in b"X: y\r\n":
                client[1].write(bytes([byte]))
                await seen_by(connect)
                loop.ahead += 150
            assert not ended.done(), "900 seconds have passed"
            client[1].write(b"Y")
            await seen_by(connect)
            loop.ahead += 150
            assert await asyncio.wait_for(ended, PATIENCE_S)

    run(attack)


def test_a_client_that_does_not_read_is_left() -> None:
    async def attack(loop: _Loop) -> None:
        async with serving(Bounds(answer_seconds=1000)) as connect:
            slow = await connect()
            slow[0]._transport.pause_reading()  # type: ignore[attr-defined]
            slow[1].write(ASK.replace(b"/health", b"/large"))
            await seen_by(connect)
            loop.ahead += 1001
            await seen_by(connect)
            # It reads only after the server has closed the connection, and finds a part.
            slow[0]._transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(slow[0].readexactly(LARGE), PATIENCE_S)

    run(attack)


def test_half_open_connections_go_for_newer_ones() -> None:
    async def attack(_loop: _Loop) -> None:
        async with serving(Bounds(connections=8)) as connect:
            half_open = [await connect() for _ in range(8)]
            for _, writer in half_open:
                writer.write(b"GET / HT")
            for _ in range(3):
                good = await connect()
                good[1].write(ASK)
                assert await answer(good) == OK
            assert await closed(half_open[0]), "the oldest"

    run(attack)


def test_a_client_with_many_connections_does_not_keep_others_out() -> None:
    taken = Connections(Bounds(of_a_client=2))
    assert [taken.room_for("10.1.0.2") for _ in range(3)] == [True, True, False]
    assert taken.room_for("10.1.0.3")
    taken.left("10.1.0.2")
    assert taken.room_for("10.1.0.2")
    assert all(taken.room_for("127.0.0.1") for _ in range(5)), "this machine's own programs have no such bound"


def test_the_bounds_fit_the_files_that_a_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 1_048_576)]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, wanted: limits.append(wanted))
    assert allow_files().connections == Bounds().connections
    assert limits[-1] == (16384, 1_048_576)
    limits.append((1024, 2048))
    assert allow_files().connections == 512, "a hard limit stays"
