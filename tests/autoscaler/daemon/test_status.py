"""The output of `status`, for users and for monitors."""

from __future__ import annotations

from dataclasses import replace

from gpucluster.autoscaler.daemon import status
from gpucluster.autoscaler.decide.types import CloudInstance, CoolDown, Fault, GangHistory, Memory, Node, Observation
from gpucluster.autoscaler.policy import Authentication, Budgets, Policy, PoolPolicy

NOW = 1_800_000_000.0
POOL = PoolPolicy("gpu", "gpu", "gpu-e", 6, 2, "BM.GPU4.8", "AD-1", "ocid1.ic", baked=True)
POLICY = Policy("demo", "c", "r", Authentication("none"), {"gpu": POOL}, prices={"BM.GPU4.8": 12.5})
SEEN = Observation(
    nodes={
        "gpu-e1": Node("gpu-e1", "gpu", frozenset({"ALLOCATED", "CLOUD"})),
        "gpu-e2": Node("gpu-e2", "gpu", frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})),
    },
    jobs={},
    instances=(
        CloudInstance("i1", "gpu-e1", "gpu", 1, "RUNNING", NOW),
        CloudInstance("i2", "gpu-e2", "gpu", 1, "TERMINATING", NOW),
        CloudInstance("i3", "gpu-e3", "gpu", 1, "TERMINATED", NOW),
    ),
)
MEMORY = Memory(
    "m",
    gangs={"7": GangHistory("7", attempts=2, not_before=NOW + 60, message="out of capacity"), "8": GangHistory("8")},
    cool_downs={"gpu": CoolDown("gpu", NOW + 300, Fault.CAPACITY, "Out of host capacity.")},
)


def judged(now: float = NOW + 3, paused: str = "", problems: tuple[str, ...] = ()) -> dict[str, object]:
    written = status.report(SEEN, MEMORY, POLICY, now=NOW, problems=problems, last_success=NOW)
    return status.evaluate(written, POLICY, paused=paused, now=now)


def test_for_monitors() -> None:
    assert judged() == {
        "version": 1,
        "cluster": "demo",
        "scheduler": "slurm",
        "healthy": True,
        "problems": [],
        "paused": "",
        "last_success_age": 3.0,
        "pools": {
            "gpu": {
                "max_nodes": 2,
                "baked": True,
                "instances": {"RUNNING": 1, "TERMINATING": 1},
                "nodes": {"allocated": 1, "powered_down": 1},
                "cool_down": {"until": "2027-01-15T08:05:00Z", "message": "Out of host capacity."},
                "boot_failure": None,
            }
        },
        "gangs": [{"jobs": "7", "attempts": 2, "next_try": "2027-01-15T08:01:00Z", "message": "out of capacity"}],
        "cost_per_hour": 12.5,
        "budgets": [],
    }


def test_budgets() -> None:
    budgets = Budgets({"vision": 10.0, "speech": 5.0}, {}, {}, "USD", "UTC")
    policy = replace(POLICY, budgets=budgets)

    def lines(spent: dict[str, float] | None) -> list[str]:
        seen = replace(SEEN, spent=spent)
        written = status.report(seen, MEMORY, policy, now=NOW, problems=(), last_success=NOW)
        found = status.text(status.evaluate(written, policy, paused="", now=NOW)).splitlines()
        return [line.removeprefix("Budget of account ") for line in found if line.startswith("Budget")]

    assert lines({"vision": 10.004, "other": 3.0}) == [
        "speech: 0.00 of 5.00 USD spent this month",
        "vision: 10.00 of 10.00 USD spent this month: no new nodes for its jobs",
    ]
    assert lines(None)[0] == "speech: an unknown sum of 5.00 USD spent this month: no new nodes for its jobs"


def test_for_users() -> None:
    assert status.text(judged()) == (
        "Autoscaler of demo: healthy, last successful pass 3 s ago\n"
        "Pool gpu: 1 of at most 2 nodes (baked image)\n"
        "  instances  1 running, 1 terminating\n"
        "  Slurm      1 allocated, 1 powered_down\n"
        "  cools down until 2027-01-15T08:05:00Z: Out of host capacity.\n"
        "Job 7: rolled back 2 times, next try 2027-01-15T08:01:00Z: out of capacity\n"
        "Cost: 12.50 an hour"
    )
    assert "paused: by hand" in status.text(judged(paused="by hand"))


def test_why_the_last_new_node_did_not_come_into_service_is_reported_before_the_pool_cools_down() -> None:
    memory = Memory(
        "ledger", boot_failures={"gpu": 1}, boot_causes={"gpu": "gpu-e1: its checks at boot failed: mounts"}
    )
    written = status.report(SEEN, memory, POLICY, now=NOW, problems=(), last_success=NOW)
    said = status.text(status.evaluate(written, POLICY, paused="", now=NOW))
    assert "  the last new node did not come into service: gpu-e1: its checks at boot failed: mounts\n" in said


def test_a_problem_or_silence_is_not_healthy() -> None:
    assert judged(problems=("cloud: no answer",))["healthy"] is False
    assert judged(now=NOW + 3600)["problems"] == ["the daemon's last reconcile pass was 60 min ago"]
    nothing = status.evaluate(None, POLICY, paused="", now=NOW)
    assert nothing["problems"] == ["the daemon has run no reconcile pass yet"]
    assert "NOT HEALTHY, no reconcile pass has succeeded yet" in status.text(nothing)


def test_without_prices_there_is_no_cost() -> None:
    from dataclasses import replace

    written = status.report(SEEN, MEMORY, replace(POLICY, prices={}), now=NOW, problems=(), last_success=None)
    assert written["cost_per_hour"] is None
