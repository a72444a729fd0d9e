"""The daemon's own loop with the real ledger and the real SDK, which ends itself with SIGKILL at a named point.

A process of its own in `test_crash`; the product has no such points. Slurm is a double.

    committed   the ledger records that a launch (or a termination) is about to be sent; nothing was sent
    sent        the request has left and there is no answer
    answered    the cloud has answered; no part has recorded the answer
    decided     the answer is about to be written down
    written     the answer is written down; what was kept of it elsewhere is not removed yet
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Imported once for all processes that start from this one.
import oci.core

from gpucluster.autoscaler.daemon import logs
from gpucluster.autoscaler.daemon.ledger import Ledger
from gpucluster.autoscaler.daemon.loop import AutoscalerLoop
from gpucluster.autoscaler.daemon.oci import OciCloud
from gpucluster.autoscaler.daemon.spool import Spool
from gpucluster.autoscaler.decide import plan_builder
from gpucluster.autoscaler.decide.types import Launch, Memory, ScalingPlan, Terminate
from gpucluster.autoscaler.policy import Policy
from tests.autoscaler.slurm_double import SlurmDouble
from tests.waiting import hang, wait_for

# So many passes in a row without work are the end.
QUIET = 10
assert oci.core

Answer = TypeVar("Answer")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    hang()


class CrashingLedger(Ledger):
    """Dies before or after it has written."""

    point = ""

    def commit(self, memory: Memory, decided: ScalingPlan | None = None, now: float | None = None) -> None:
        deeds = any(isinstance(action, (Launch, Terminate)) for action in (decided.actions if decided else ()))
        learnt = any(claim.instance_id for claim in memory.claims.values())
        if self.point == "decided" and learnt:
            die()
        super().commit(memory, decided, now)
        if (self.point == "committed" and deeds) or (self.point == "written" and learnt):
            die()


class CrashingCloud(OciCloud):
    """Dies when it has sent a request, or when it has the answer."""

    point = ""

    def launch(self, *arguments: Any, **options: Any) -> tuple[str, str]:
        return self._deadly(lambda: super(CrashingCloud, self).launch(*arguments, **options))

    def terminate(self, instance_id: str) -> bool:
        return self._deadly(lambda: super(CrashingCloud, self).terminate(instance_id))

    def _deadly(self, deed: Callable[[], Answer]) -> Answer:
        _thread.deadly = self.point == "sent"
        answer = deed()
        if self.point == "answered":
            die()
        return answer


_thread = threading.local()
_get_response = http.client.HTTPConnection.getresponse


def _die_before_the_answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Called when a request was sent."""
    # A launch reads before it writes.
    if getattr(_thread, "deadly", False) and getattr(connection, "sent_method", "") in ("POST", "DELETE"):
        die()
    return _get_response(connection)


_put_request = http.client.HTTPConnection.putrequest


def _remember_the_method(connection: http.client.HTTPConnection, method: str, *arguments: Any, **options: Any) -> None:
    connection.sent_method = method  # type: ignore[attr-defined]
    _put_request(connection, method, *arguments, **options)


def main(config: Path, state: Path, spool: Path, slurm: Path, log: Path, point: str, goal: int) -> None:
    """Reconcile until we die, or until there are so many instances and some passes have no work."""
    sys.stderr = log.open("a")
    logs.to_stream(sys.stderr)
    http.client.HTTPConnection.getresponse = _die_before_the_answer  # type: ignore[assignment,method-assign]
    http.client.HTTPConnection.putrequest = _remember_the_method  # type: ignore[assignment,method-assign]
    policy = Policy.load(config)
    CrashingLedger.point = CrashingCloud.point = point
    # A termination that was committed and never sent is requested again after half a minute.
    plan_builder.ASK_AGAIN = 2.0
    with CrashingLedger(state) as ledger:
        cloud = CrashingCloud(policy)
        autoscaler = AutoscalerLoop(
            policy, slurm=SlurmDouble(slurm), cloud=cloud, ledger=ledger, spool=Spool(spool), state=state
        )
        quiet = 0

        def rests() -> bool:
            nonlocal quiet
            autoscaler.reconcile()
            moving = any(claim.state == "intended" for claim in ledger.load().claims.values())
            quiet = quiet + 1 if not moving and len(cloud.instances()) == goal else 0
            return quiet == QUIET

        wait_for("it dies, or nothing moves any more", rests)
    sys.stderr.flush()
    os._exit(0)
