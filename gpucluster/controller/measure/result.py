"""What the schedulers have in common: how a measurement ends, and which may start now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpucluster.controller.measure.request import Request

#: How a job ended: by itself; or it never started, ran too long, printed too much, or lost a node.
ENDED, NOT_STARTED, TOO_LONG, TOO_MUCH, LOST = "ended", "not_started", "too_long", "too_much", "lost"
#: Bytes of output of one job. One rank of each node prints less than 20 kB.
MOST_OUTPUT = 32 << 20


def startable(waiting: Sequence[Request], running: Collection[Request], most: int) -> list[Request]:
    """Those of which no node is in use, nor wanted by one that waits before them.

    Args:
        most: of all that run.
    """
    used = {node for request in running for node in request.nodes}
    requests: list[Request] = []
    for request in waiting:
        if not used & set(request.nodes) and len(running) + len(requests) < most:
            requests.append(request)
        used |= set(request.nodes)
    return requests
