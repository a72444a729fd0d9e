"""Bounds for the clients of the web servers: a request that never ends, and too many connections.

Uvicorn waits for a request as long as its client likes, and takes as many connections as the process may have files. So
one instance, or a program of this machine that goes wrong, could keep the API from all others.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from gpucluster.localcloud.state.cloud import log

#: Thousands of clients may wait for the answer to a request of theirs at the same time.
_WANTED_FILES = 16384
# Of a connection over the forwarder, which is at both of its ends in this process. The rest is for everything else.
_FILES_PER_CONNECTION = 4
_LOOPBACK = "127."


@dataclass(frozen=True)
class Bounds:
    """What a client may take.

    Args:
        request_seconds: from the begin of a connection to the end of its first request.
        idle_seconds: from an answer to the end of the next request on the same connection. More than any client waits
            between two requests: oci's retries wait up to 30 s, and a connection that is closed at the same moment
            would end the last of them with an error of the network instead of the refusal.
        answer_seconds: a client may read nothing of an answer for so long.
        connections: of all clients.
        of_a_client: connections of one address. Those of this machine have no such bound: it has no users to separate.
    """

    request_seconds: float = 30.0
    idle_seconds: int = 120
    answer_seconds: float = 60.0
    connections: int = 4096
    of_a_client: int = 256


def allow_files() -> Bounds:
    """Raise the number of files that this process may open, and return bounds that fit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    desired = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < desired:
        resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))
        soft = desired
    files = _WANTED_FILES if soft == resource.RLIM_INFINITY else min(soft, _WANTED_FILES)
    return Bounds(connections=files // _FILES_PER_CONNECTION)


class Connections:
    """The connections to the web servers of this process, in its event loop."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._open: set[_Connection] = set()
        # Those without a whole request, the oldest first.
        self._waiting: dict[_Connection, None] = {}
        self._of_client: Counter[str] = Counter()

    def protocol(self) -> type[asyncio.Protocol]:
        """What Uvicorn makes for each connection (its setting `http`)."""
        return type("Connection", (_Connection,), {"_all": self})

    def room_for(self, client: str) -> bool:
        """Whether a client may open one more connection, and if so, count it until `left`."""
        if not client.startswith(_LOOPBACK) and self._of_client[client] >= self.bounds.of_a_client:
            return False
        self._of_client[client] += 1
        return True

    def left(self, client: str) -> None:
        """Count a connection of a client no longer."""
        self._of_client[client] -= 1
        if self._of_client[client] <= 0:
            del self._of_client[client]

    def admit(self, connection: _Connection, client: str) -> bool:
        """Take a connection. The oldest that has sent no whole request goes for it, where there are too many."""
        if not self.room_for(client):
            log.warning("%s has %d connections and gets no further one", client, self.bounds.of_a_client)
            return False
        if len(self._open) >= self.bounds.connections:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                log.warning("all %d connections are in use; %s gets none", self.bounds.connections, client)
                self.left(client)
                return False
            oldest.abort("too many connections wait for a request, and a newer one has come")
        self._open.add(connection)
        return True

    def forget(self, connection: _Connection, client: str) -> None:
        """A connection that was admitted is gone."""
        if connection in self._open:
            self._open.remove(connection)
            self._waiting.pop(connection, None)
            self.left(client)

    def waits(self, connection: _Connection, waits: bool) -> None:
        """Remember whether a connection waits for a request or the rest of one."""
        if waits:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)


class _Connection(H11Protocol):
    """One connection. Uvicorn makes it, so what belongs to all of them is in the class."""

    _all: ClassVar[Connections]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, or hang up."""
        super().connection_made(transport)
        if not self._all.admit(self, self._address):
            transport.abort()
            return
        self._wait_for_request(self._all.bounds.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all timers."""
        self._all.forget(self, self._address)
        for timer in (self._request_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the time for a request does not begin again with each of its bytes."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read the end of its last answer."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client does not read as fast as the answer is written."""
        self.flow.pause_writing()
        why = "it has read nothing of its answer"
        self._answer_timer = self.loop.call_later(self._all.bounds.answer_seconds, self.abort, why)

    def resume_writing(self) -> None:
        """It reads again."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        self.flow.resume_writing()

    def abort(self, why: str) -> None:
        """Hang up."""
        log.info("the connection of %s is closed: %s", self._address, why)
        self._all.forget(self, self._address)
        self.transport.abort()

    def _has_request(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _look(self) -> None:
        if self._has_request():
            if self._request_timer is not None:
                self._request_timer.cancel()
                self._request_timer = None
            self._all.waits(self, waits=False)
        elif self._request_timer is None:
            self._wait_for_request(self._all.bounds.idle_seconds)

    def _wait_for_request(self, seconds: float) -> None:
        self._all.waits(self, waits=True)
        self._request_timer = self.loop.call_later(seconds, self.abort, f"no whole request came within {seconds:.0f} s")
