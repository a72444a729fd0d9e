"""What was spent this month: when it is asked, what an error leaves, and a new month."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.budgets import AGAIN_S, EVERY_S, BudgetReader
from gpucluster.autoscaler.daemon.instance_record import FILE, InstanceRecord
from gpucluster.autoscaler.decide.types import CloudInstance
from gpucluster.autoscaler.policy import Budgets, PoolPolicy
from gpucluster.node_agent.errors import Failed
from tests.waiting import wait_for

HOUR = 3600.0
MONTH = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NOW = MONTH + 10 * HOUR
MACHINE = {"shape": "X", "cpus": 4, "memory_mib": 100, "devices": 0}
FIXED = {"id": "f", "name": "fixed-1", "pool": "fixed", "machine": MACHINE}
BUDGETS = Budgets({"vision": 10.0}, {"vision": "root"}, {"gpu": 6.0, "fixed": 2.0}, "USD", "UTC", (FIXED,))


class Sacct:
    """What sacct prints, and between which times it was asked. It does not prove what sacct prints."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.asked, self.fails = lines, list[tuple[float, float]](), False

    def __call__(self, since: float, until: float) -> str:
        self.asked.append((since, until))
        if self.fails:
            raise Failed("no database", "wait")
        return "\n".join(self.lines)


def line(node: str, begin: float, end: str = "Unknown") -> str:
    return f"7|alice|vision|{begin:.0f}|{end}|cpu=4,mem=1M|{node}"


def reader(folder: Path, sacct: Sacct) -> BudgetReader:
    return BudgetReader(BUDGETS, folder / FILE, sacct=sacct)


def test_elastic_and_permanent_nodes_count_from_the_beginning_of_the_month(tmp_path: Path) -> None:
    pool = PoolPolicy("gpu", "gpu", "gpu-e", 9, 4, "X", "AD-1", "ocid", machine=MACHINE)
    instance = CloudInstance("o", "gpu-e1", "gpu", 1, "RUNNING", MONTH - HOUR)
    InstanceRecord(tmp_path).observe([instance], {"gpu": pool}, MONTH)
    sacct = Sacct(line("gpu-e1", MONTH - HOUR, f"{MONTH + 2 * HOUR:.0f}"), line("fixed-1", NOW - HOUR))
    found = reader(tmp_path, sacct).read(NOW)
    assert found is not None
    assert found.accounts["vision"] == pytest.approx(2 * 6.0 + 1 * 2.0)
    assert sacct.asked == [(MONTH, NOW)]


def test_it_is_asked_every_minute_and_nobody_waits_for_it(tmp_path: Path) -> None:
    sacct = Sacct(line("fixed-1", MONTH))
    budgets = reader(tmp_path, sacct)
    budgets.read(NOW)
    budgets.read(NOW + EVERY_S / 2)
    assert len(sacct.asked) == 1
    budgets.read(NOW + EVERY_S)
    wait_for("it is asked again", lambda: len(sacct.asked) == 2)


def test_the_last_answer_stands_while_the_accounting_does_not_answer(tmp_path: Path) -> None:
    sacct = Sacct(line("fixed-1", MONTH))
    budgets = reader(tmp_path, sacct)
    first = budgets.read(NOW)
    sacct.fails = True
    budgets.read(NOW + EVERY_S)
    wait_for("it has failed", lambda: budgets.error is not None)
    assert budgets.read(NOW + EVERY_S + 1) == first
    sacct.fails = False

    def answers() -> bool:
        budgets.read(NOW + 3 * EVERY_S)  # asks nothing as long as the thread that has failed is about to end
        return budgets.error is None

    wait_for("it answers", answers)


def test_without_a_first_answer_nothing_is_known_and_it_is_asked_again_soon(tmp_path: Path) -> None:
    sacct = Sacct(line("fixed-1", MONTH))
    sacct.fails = True
    budgets = reader(tmp_path, sacct)
    assert budgets.read(NOW) is None
    assert "no database" in str(budgets.error)
    assert budgets.read(NOW + AGAIN_S / 2) is None
    assert len(sacct.asked) == 1
    sacct.fails = False
    assert budgets.read(NOW + AGAIN_S) is not None
    assert budgets.error is None


def test_a_new_month_begins_with_nothing(tmp_path: Path) -> None:
    sacct = Sacct(line("fixed-1", NOW, f"{NOW + HOUR:.0f}"))
    budgets = reader(tmp_path, sacct)
    budgets.read(NOW + HOUR)
    later = datetime(2026, 12, 1, 0, 0, 5, tzinfo=UTC).timestamp()
    found = budgets.read(later)
    assert found is not None
    assert found.accounts == {}
    assert sacct.asked[-1][0] == later - 5
