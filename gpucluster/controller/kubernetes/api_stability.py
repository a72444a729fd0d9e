"""Wait until the API server answers without a break.

A kubelet that was started again may start its static pods again as well: one of another release does, where it
describes a container in another way than the one before. It does so some seconds after it has reported that its node is
ready, so one answer of the API server does not predict the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

#: Seconds without a break. kubelet looks at its static pods in the first seconds after its start.
STEADY_S = 15.0
#: Seconds for all of it: each part of the control plane may need a minute.
WITHIN_S = 300.0
_REQUEST_S, _POLL_S = 5.0, 1.0


def await_steady(
    kubectl: Kubectl,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Wait until the API server has been ready for STEADY_S. Returns how often it was not.

    Raises:
        Failed: it was not within WITHIN_S; the reason is that of its last refusal.
    """
    end = clock() + WITHIN_S
    since: float | None = None
    breaks, last = 0, "it was ready, and not for long enough"
    while True:
        try:
            kubectl.run("get", "--raw=/readyz", seconds=_REQUEST_S)
        except Failed as error:
            if since is not None or not breaks:
                breaks += 1
            since, last = None, error.message
        else:
            since = clock() if since is None else since
            if clock() - since >= STEADY_S:
                return breaks
        if clock() > end:
            raise Failed(
                f"the API server was not ready for {STEADY_S:.0f} s without a break within {WITHIN_S:.0f} s: {last}",
                "Look why: gpucluster kubernetes status",
            )
        wait(_POLL_S)
