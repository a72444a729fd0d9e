"""Asks the RAS port of NCCL on this host, with bounds on time and size: the process that answers is a user's.

Every process of a job listens on the same port (SO_REUSEPORT, NCCL's src/ras/client_support.cc), also those of several
jobs of one user, and the kernel chooses one for each connection. So one that is stopped does not hide the others: a
connection that brings nothing is tried again, and an answer of another job, too. Processes of another user can't listen
there meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Callable

from gpucluster.node_agent.watch import ras

#: NCCL's own, if the job has not set NCCL_RAS_ADDR.
ADDRESS = ("localhost", 28028)
#: Seconds in which a process that works takes the first line. NCCL's own client waits as long.
FIRST_S = 1.0
#: Seconds that the process may wait for other processes, and that it takes in addition: NCCL has both.
COLLECT_S, EXTRA_S = 5, 6.0
#: Connections for one answer.
TRIES = 6
#: Bytes of an answer: JSON has 600 for a rank of a communicator.
LARGEST = 64 << 20
_LONGEST_LINE = 4096
_OK = b"OK\n"


class NoRasAnswer(Exception):
    """RAS gives no answer; the message has the reason."""


def ask(
    address: tuple[str, int] = ADDRESS,
    matches: Callable[[ras.RasAnswer], bool] = lambda _answer: True,
    *,
    tries: int = TRIES,
    first_s: float = FIRST_S,
    answer_s: float = COLLECT_S + EXTRA_S,
) -> ras.RasAnswer:
    """The first answer that matches.

    It takes at most `tries` * `first_s` seconds and one `answer_s`.

    Args:
        matches: whether an answer is of the right job.

    Raises:
        NoRasAnswer: nothing listens, all that listen are silent, or no answer matches.
    """
    reason = "nothing was tried"
    until = time.monotonic() + tries * first_s + answer_s
    for _ in range(tries):
        try:
            answer = _once(address, first_s, min(answer_s, until - time.monotonic()))
        except ConnectionRefusedError:
            raise NoRasAnswer(f"nothing listens on port {address[1]}") from None
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        else:
            if matches(answer):
                return answer
            reason = "the processes that answer are of another job"
        if time.monotonic() >= until:
            break
    raise NoRasAnswer(reason)


def _once(address: tuple[str, int], first_s: float, answer_s: float) -> ras.RasAnswer:
    """One connection.

    Raises:
        OSError: no connection, or it ends too early or too late.
        ValueError: the answer is none.
    """
    with contextlib.closing(socket.create_connection(address, timeout=first_s)) as connection:
        talk = _Talk(connection, time.monotonic() + first_s)
        talk.say("CLIENT PROTOCOL 2")
        if not talk.line().startswith(b"SERVER PROTOCOL "):
            raise ValueError("what listens there is not NCCL")
        talk.until = time.monotonic() + answer_s
        talk.say(f"TIMEOUT {COLLECT_S}")
        if talk.line() != _OK:
            raise ValueError("NCCL takes no limit of time")
        # Before 2.28.7 this is an error, and the connection goes on with text.
        talk.say("SET FORMAT json")
        talk.line()
        talk.say("VERBOSE STATUS")
        return ras.parse(talk.rest().decode(errors="replace"))


class _Talk:
    """Lines to and from a server, until a time."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self.until = connection, until
        self._buffer = b""

    def say(self, line: str) -> None:
        self._left()
        self._connection.sendall(line.encode() + b"\n")

    def line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = self._read()
            if not data or len(self._buffer) > _LONGEST_LINE:
                raise ValueError("the line has no end")
            self._buffer += data
        line, _end, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def rest(self) -> bytes:
        parts, size = [self._buffer], len(self._buffer)
        while True:
            data = self._read()
            if not data:
                return b"".join(parts)
            parts.append(data)
            size += len(data)
            if size > LARGEST:
                raise ValueError(f"the answer has more than {LARGEST} bytes")

    def _read(self) -> bytes:
        self._left()
        return self._connection.recv(1 << 16)

    def _left(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise socket.timeout("no answer in time")
        self._connection.settimeout(left)
