"""The daemon's own loop with the real ledger and the real SDK, which ends itself with SIGKILL at a named point.

Run by `test_crash`; the product has no such points. Slurm is a double.

    committed   the ledger says that a launch (or a termination) is about to be sent; nothing was sent
    sent        the request has left and there is no answer
    answered    the cloud has answered; nobody has heard of it
    decided     the answer is about to be written down
    written     the answer is written down; what was kept of it elsewhere is not removed yet
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpucluster.autoscaler.daemon import logs
from gpucluster.autoscaler.daemon.ledger import Ledger
from gpucluster.autoscaler.daemon.loop import Autoscaler
from gpucluster.autoscaler.daemon.oci import OciCloud
from gpucluster.autoscaler.daemon.spool import Spool
from gpucluster.autoscaler.decide import plan_builder
from gpucluster.autoscaler.decide.types import Launch, Memory, Plan, Terminate
from gpucluster.autoscaler.policy import Policy
from tests.autoscaler.slurm_double import SlurmDouble

# Seconds from sending a request to the kill; the server needs longer than that for it (see the test).
SENT = 0.3
QUIET = 10


Answer = TypeVar("Answer")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class CrashingLedger(Ledger):
    """Dies before or after it has written."""

    point = ""

    def commit(self, memory: Memory, decided: Plan | None = None, now: float | None = None) -> None:
        deeds = any(isinstance(action, (Launch, Terminate)) for action in (decided.actions if decided else ()))
        learnt = any(claim.instance_id for claim in memory.claims.values())
        if self.point == "decided" and learnt:
            die()
        super().commit(memory, decided, now)
        if (self.point == "committed" and deeds) or (self.point == "written" and learnt):
            die()


class CrashingCloud(OciCloud):
    """Dies while it waits for an answer, or when it has the answer."""

    point = ""

    def launch(self, *arguments: Any, **options: Any) -> tuple[str, str]:
        return self._deadly(lambda: super(CrashingCloud, self).launch(*arguments, **options))

    def terminate(self, instance_id: str) -> bool:
        return self._deadly(lambda: super(CrashingCloud, self).terminate(instance_id))

    def _deadly(self, deed: Callable[[], Answer]) -> Answer:
        if self.point == "sent":
            threading.Timer(SENT, die).start()
        answer = deed()
        if self.point == "answered":
            die()
        return answer


def main(config: Path, state: Path, spool: Path, slurm: Path, point: str, seconds: float, goal: int) -> None:
    """Reconcile until we die, or there are so many instances and some passes have no work, or the time is over."""
    logs.to_stream(sys.stderr)
    policy = Policy.load(config)
    CrashingLedger.point = CrashingCloud.point = point
    plan_builder.ASK_AGAIN = (
        2.0  # a termination that was committed and never sent is requested again after half a minute
    )
    with CrashingLedger(state) as ledger:
        cloud = CrashingCloud(policy)
        autoscaler = Autoscaler(
            policy, slurm=SlurmDouble(slurm), cloud=cloud, ledger=ledger, spool=Spool(spool), state=state
        )
        until, quiet = time.monotonic() + seconds, 0
        while time.monotonic() < until and quiet < QUIET:
            autoscaler.reconcile()
            moving = any(claim.state == "intended" for claim in ledger.load().claims.values())
            settled = not point and not moving and len(cloud.instances()) == goal
            quiet = quiet + 1 if settled else 0
            time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    config, state, spool, slurm, point, seconds, goal = sys.argv[1:]
    main(Path(config), Path(state), Path(spool), Path(slurm), point, float(seconds), int(goal))
