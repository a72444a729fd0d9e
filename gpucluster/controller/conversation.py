"""The lines between this program and the operator's machine: one JSON object each."""

from __future__ import annotations

import contextlib
import json
import os
import select
from typing import Any

from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import AgentError, Refused

_MOST = 16 << 20
_CHUNK = 1 << 16
#: A machine that was cut off from the network never closes its connection. It asks within a second of each answer.
_SILENCE_S = 600.0


class Disconnected(Exception):
    """The other end of the connection is closed, or silent."""


class RequestChannel:
    """Reads requests and writes answers.

    Args:
        source: the descriptor of the requests.
        target: the descriptor of the answers.
    """

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._buffer = b""

    def listen(self) -> None:
        """Read what has come; the source is ready.

        Raises:
            Disconnected: the end has come, or a line that is longer than any request.
        """
        chunk = os.read(self.source, _CHUNK)
        self._buffer += chunk
        if not chunk or len(self._buffer) > _MOST:
            raise Disconnected

    def has_request(self) -> bool:
        """Whether the next request is here."""
        return b"\n" in self._buffer

    def request(self) -> dict[str, Any]:
        """The next request; waits for it. What is not a JSON object is an empty one.

        Raises:
            Disconnected: there is none.
        """
        while not self.has_request():
            if not select.select([self.source], [], [], _SILENCE_S)[0]:
                raise Disconnected
            self.listen()
        line, _newline, self._buffer = self._buffer.partition(b"\n")
        try:
            request = bounded.loads(line)
        except ValueError:
            return {}
        return request if isinstance(request, dict) else {}

    def say(self, **words: Any) -> None:
        """Write one line.

        Raises:
            Disconnected: it is not read any more.
        """
        data = (json.dumps(words) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:
            raise Disconnected from None

    def say_error(self, error: AgentError, **more: Any) -> None:
        """Write the line of a request that failed. The other end may be gone."""
        words = {"message": error.message, "hint": error.hint, "refused": isinstance(error, Refused)}
        with contextlib.suppress(Disconnected):
            self.say(error={**words, **more})

    def wait(self, seconds: float) -> None:
        """Wait, and see whether the other end is still there.

        Raises:
            Disconnected: it is not.
        """
        if select.select([self.source], [], [], seconds)[0]:
            self.listen()
