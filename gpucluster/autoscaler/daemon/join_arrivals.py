"""Which of the requested instances are configured together, and when.

A run of ansible-playbook costs the controller several seconds of processor time before its first task on a node, so few
runs configure many nodes. The nodes of one job are requested within seconds, and their sshd starts within seconds, too.
A run therefore begins when all of them answer. It does not wait long for the last one, which gets a run of its own.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpucluster.autoscaler.daemon.join_requests import JoinRequest

PORT = 22
# Seconds: for more requests after the last one; for other hosts after the first one answered; for a host to answer.
SETTLE, WINDOW, PATIENCE = 2.0, 5.0, 300.0
_PROBE = 0.2


@dataclass(slots=True)
class Arrival:
    """A requested instance that is not being configured yet. Times are of the monotonic clock.

    Args:
        since: when its request was read. `answered_at`: when its sshd first accepted a connection; None before.
    """

    request: JoinRequest
    since: float
    answered_at: float | None = None


def due(waiting: Collection[Arrival], now: float, *, settle: float = SETTLE, window: float = WINDOW) -> list[Arrival]:
    """The instances whose configuration begins now: those that answer, once all do or the first has waited enough."""
    ready = [arrival for arrival in waiting if arrival.answered_at is not None]
    if not ready:
        return []
    complete = len(ready) == len(waiting) and now - max(arrival.since for arrival in waiting) >= settle
    waited = now - min(arrival.answered_at for arrival in ready if arrival.answered_at is not None)
    return ready if complete or waited >= window else []


def overdue(waiting: Collection[Arrival], now: float, *, patience: float = PATIENCE) -> list[Arrival]:
    """The instances that have not answered for too long."""
    return [arrival for arrival in waiting if arrival.answered_at is None and now - arrival.since >= patience]


def answering(addresses: Collection[str], *, port: int = PORT, seconds: float = _PROBE) -> frozenset[str]:
    """Which of these addresses accept a TCP connection within so many seconds. Nothing is sent."""
    with contextlib.ExitStack() as stack:
        tried: dict[socket.socket, str] = {}
        for address in addresses:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            probe.connect_ex((address, port))
            tried[probe] = address
        return frozenset(tried[probe] for probe in _connected(list(tried), time.monotonic() + seconds))


def _connected(probes: Sequence[socket.socket], until: float) -> list[socket.socket]:
    poll = select.poll()
    left = {probe.fileno(): probe for probe in probes}
    for number in left:
        poll.register(number, select.POLLOUT)
    open_probes = []
    while left and (events := poll.poll(max(0.0, until - time.monotonic()) * 1000)):
        for number, _event in events:
            poll.unregister(number)
            probe = left.pop(number)
            if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                open_probes.append(probe)
    return open_probes
