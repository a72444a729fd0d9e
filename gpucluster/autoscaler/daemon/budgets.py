"""What accounts have spent this month, for their budgets: read from Slurm's accounting and the record of instances.

A thread reads it every minute, because the accounting may answer slowly. The first time the caller waits: without an
answer no node is launched for an account with a budget. When a later question fails, the last answer stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

from gpucluster.autoscaler.policy import Budgets
from gpucluster.controller.accounts import usage
from gpucluster.cost import records, report
from gpucluster.cost.budget import Spending, spending
from gpucluster.cost.model import HostInterval, Prices
from gpucluster.errors import GpuClusterError
from gpucluster.node_agent.errors import AgentError

EVERY_S = 60.0
#: Seconds between two questions while there is no answer.
AGAIN_S = 10.0


class BudgetReader:
    """Reads what was spent.

    Args:
        record: the file of the record of instances.
        sacct: the lines of sacct between two times.
    """

    def __init__(self, budgets: Budgets, record: Path, *, sacct: Callable[[float, float], str] = usage.sacct) -> None:
        self._budgets, self._record, self._sacct = budgets, record, sacct
        self._spending: Spending | None = None
        self._error: Exception | None = None
        self._month: tuple[float, float] | None = None
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None

    def read(self, now: float) -> Spending | None:
        """What was spent this month; None if it is not known yet. Does not wait, except the first time."""
        if self._spending is None or report.month(now, self._zone) != self._month:
            if now - self._asked_at >= AGAIN_S:
                self._ask(now)
        elif now - self._asked_at >= EVERY_S and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._ask, args=(now,), name="budgets", daemon=True)
            self._thread.start()
        return self._spending if self._month == report.month(now, self._zone) else None

    @property
    def error(self) -> Exception | None:
        """Why the last question failed."""
        return self._error

    @property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self._budgets.timezone)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        try:
            self._spending, self._month = self._counted(now), report.month(now, self._zone)
            self._error = None
        except AgentError as error:
            self._error = GpuClusterError(error.message, hint=error.hint)
        except Exception as error:  # of any kind: it is a problem in the status, and the last answer stands
            self._error = error

    def _counted(self, now: float) -> Spending:
        window = (report.month(now, self._zone)[0], now)
        permanent = [{**row, "began": 0.0, "ended": None} for row in self._budgets.hosts]
        hosts = records.hosts([*permanent, *usage.instances(self._record)])
        runs = records.runs(self._sacct(*window))
        return spending(hosts, runs, self._price_of, window=window, parents=self._budgets.parents)

    def _price_of(self, host: HostInterval) -> Prices:
        return [(0.0, self._budgets.prices.get(host.pool))]
