"""What commands print at their end: the status, the sum of a run, a plan."""

from __future__ import annotations

from dataclasses import replace

from gpucluster.cli.plan_report import plan_text
from gpucluster.cli.summaries import status_text, summary
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import Scaling
from gpucluster.lifecycle.result import RunResult
from gpucluster.terraform.plan import ResourceChange
from gpucluster.workspace.run_log import RunStatus
from tests.cli.test_value_diff import OPEN, RULE

STATUS = {
    "name": "demo", "state": "partial", "resources": {"instance": 3, "vcn": 1}, "pending": ["not configured: a"],
    "hosts": [{"name": "a", "address": "10.0.0.2", "instance": "RUNNING"}], "slurm": [], "kubernetes": [],
    "certificates": None,
    "service": None,
    "maintenance": None,
    "autoscaler": None,
    "running": None,
    "last_change": {
        "run": "1", "command": "apply", "status": "killed", "phase": "ansible", "started": "2026-01-01T11:00:00+00:00",
    },
    "last_run": {"run": "2", "command": "plan", "status": "success", "started": "2026-01-01T12:00:00+00:00"},
    "sources": {
        "cloud": {"time": "2026-01-01T12:30:00+00:00", "error": ""},
        "hosts": {"time": "2026-01-01T11:05:00+00:00", "error": ""},
        "slurm": {"time": "2026-01-01T12:30:01+00:00", "error": "the controller can't be reached"},
    },
}  # fmt: skip


def test_the_status_shows_what_is_pending_who_did_not_answer_and_since_when_it_knows_the_rest() -> None:
    lines = status_text(STATUS).splitlines()
    assert lines[0] == "cluster demo: partial, 3 instances and 1 other resource in the cloud"
    assert "! not configured: a" in lines
    assert "! Slurm: the controller can't be reached" in lines
    assert "as of 2026-01-01 12:30:00 UTC: the cloud" in lines
    assert "as of 2026-01-01 11:05:00 UTC: the hosts' addresses" in lines
    assert lines[-2:] == [
        "last change: apply killed in the phase ansible, started 2026-01-01 11:00:00 UTC",
        "last run: plan success, started 2026-01-01 12:00:00 UTC",
    ]


def test_the_status_of_a_run_that_works_now_does_not_ask_for_another_one() -> None:
    running = {"pid": 7, "host": "desk", "command": "apply", "since": 1.0}
    text = status_text({**STATUS, "running": running})
    assert "running now: gpucluster apply, pid 7 on desk" in text
    assert "Continue with" not in text


def test_a_run_ends_with_the_number_of_resources_that_it_changed() -> None:
    result = RunResult("apply", RunStatus.SUCCESS, 3.0, {}, changes=3, resources={"create": 2, "delete": 1})
    assert "resources: 2 created, 1 deleted" in summary(result)
    assert result.to_dict()["resources"] == {"create": 2, "delete": 1}
    assert "resources:" not in summary(replace(result, resources={}))


def test_a_role_that_took_no_time_is_not_listed() -> None:
    result = RunResult("apply", RunStatus.SUCCESS, 3.0, {"ansible": 2.0}, roles={"slurm": 1.5, "nvidia": 0.01})
    assert "role slurm" in summary(result)
    assert "nvidia" not in summary(result)


def test_a_plan_has_a_line_for_each_element() -> None:
    change = ResourceChange(
        "module.network.oci_core_security_list.public", "update", changed=("ingress_security_rules",),
        values={"ingress_security_rules": ([RULE, RULE], [RULE, RULE, OPEN]), "display_name": ("a", "b")},
    )  # fmt: skip
    text = plan_text(ClusterPlan((change,), False, Scaling({}), ()))
    assert "      ingress_security_rules:\n        + ingress tcp 23 from 0.0.0.0/0\n" in text
    assert "display_name: a -> b" in text


def test_the_status_has_a_line_for_each_budget() -> None:
    budgets = [
        {"account": "vision", "budget": 10.0, "spent": 10.5, "currency": "USD", "held": True},
        {"account": "speech", "budget": 5.0, "spent": 1.0, "currency": "USD", "held": False},
        {"account": "lab", "budget": 5.0, "spent": None, "currency": "USD", "held": True},
    ]
    lines = status_text({**STATUS, "autoscaler": {"pools": {}, "problems": [], "budgets": budgets}}).splitlines()
    assert "! budget of account vision: 10.50 of 10.00 USD spent this month: its jobs get no new nodes" in lines
    assert "budget of account speech: 1.00 of 5.00 USD spent this month" in lines
    assert "! budget of account lab: an unknown sum of 5.00 USD spent this month: its jobs get no new nodes" in lines


def test_the_status_shows_which_host_is_in_service() -> None:
    service = {"in_service": "demo-standby", "standby": "demo-controller", "current": False, "begun": False}
    text = status_text({**STATUS, "service": service})
    assert "in service: demo-standby; standby: demo-controller (not up to date)" in text.splitlines()
