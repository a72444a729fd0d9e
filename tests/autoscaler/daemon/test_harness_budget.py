"""A budget of an account with real Slurm, the local cloud's server and the daemon's own process.

`sacct` is a double: it prints what a test has written, because this Slurm has no database. tests/cost/test_records.py
has lines of a real one, and tests/e2e/test_people.py asks one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.autoscaler.cluster_harness import ClusterHarness, HarnessPool

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

FIXED = {"id": "f", "name": "fixed-1", "pool": "fixed", "machine": {"shape": "X", "cpus": 4}}


@pytest.fixture
def harness() -> Iterator[ClusterHarness]:
    with ClusterHarness([HarnessPool("b", 3)], daemon=False) as made:
        yield made


def noon() -> str:
    """A time zone in which it is noon: no month begins while the job runs, or while the test does."""
    return f"Etc/GMT{datetime.now(UTC).hour - 12:+d}"


def budget(harness: ClusterHarness, amount: float) -> None:
    content = json.loads(harness.policy.read_text())
    content["budgets"] = {
        "amounts": {"science": amount}, "parents": {"vision": "science"}, "prices": {"fixed": 36.0, "b": 3.6},
        "currency": "USD", "timezone": noon(), "hosts": [FIXED],
    }  # fmt: skip
    harness.policy.write_text(json.dumps(content))


def restart(harness: ClusterHarness) -> None:
    if harness.daemon_runs:
        harness.end_daemon()
    harness.start_daemon()
    harness.passes()


def spent(harness: ClusterHarness, seconds: int) -> None:
    """A job of the account has run for so long on the permanent node, at a cent a second."""
    now = int(time.time())
    line = f"1|alice|vision|{now - seconds}|{now}|cpu=4|fixed-1"
    tool = harness.folder / "bin" / "sacct"
    tool.write_text(f"#!/bin/sh\necho '{line}'\n")
    tool.chmod(0o755)


def test_a_spent_budget_holds_new_nodes_and_ends_no_job(harness: ClusterHarness) -> None:
    budget(harness, 10.0)
    spent(harness, 1)
    restart(harness)
    runs = harness.sbatch("b", 1, "--account=vision", script=harness.gated("run"))
    harness.wait_state(runs, "RUNNING")

    spent(harness, 1100)
    restart(harness)
    waits = harness.sbatch("b", 1, "--account=vision")
    other = harness.sbatch("b", 1, "--account=speech", script=harness.gated("run"))
    harness.until("the job is told", lambda: "has spent its budget of this month, 10.00 USD" in harness.words(waits))
    harness.wait_state(other, "RUNNING")
    assert harness.state(runs) == "RUNNING"
    # It is tried again every few seconds: then it has nodes that are never launched.
    assert harness.state(waits) in ("PENDING", "CONFIGURING")
    (row,) = harness.status["budgets"]
    assert (row["account"], row["budget"], row["held"]) == ("science", 10.0, True)
    assert row["spent"] >= 11.0
    assert "Budget of account science: 11." in harness.ask_daemon("status")
    assert "the account science has spent its budget" in harness.ask_daemon("explain", waits)

    # It is raised: the job gets its node by itself.
    budget(harness, 100.0)
    restart(harness)
    harness.wait_state(waits, "COMPLETED")
    assert harness.state(runs) == "RUNNING"
    harness.open("run")
    harness.wait_state(runs, "COMPLETED")
