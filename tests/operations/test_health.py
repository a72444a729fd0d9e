"""What is asked of the health service, and how its answers are read. The service itself is a double."""

from __future__ import annotations

import json

import pytest

from gpucluster.controller.health.policy import Action
from gpucluster.errors import ToolError
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.operations.health import HealthService
from gpucluster.verdict.repair import HealthDecision
from tests.doubles.controller import ControllerDouble, said

FINDING = Finding("gpu_count", "c-1", Status.FAIL, "7 of 8", {"found": 7})


def service(text: str, status: int = 0, errors: str = "") -> tuple[HealthService, ControllerDouble]:
    double = ControllerDouble(said(text, status, errors))
    return HealthService(double), double  # type: ignore[arg-type]


def test_findings_go_in_and_decisions_come_out() -> None:
    raw = {"node": "c-1", "action": "drain", "done": True, "reason": "gpucluster: ...", "checks": ["gpu_count"]}
    new = {**raw, "node": "c-2", "action": "repaint"}
    health, double = service(json.dumps({"decisions": [raw, new]}))
    assert health.react([FINDING], shadow=True) == (
        HealthDecision("c-1", Action.DRAIN, True, "gpucluster: ...", ("gpu_count",)),
        HealthDecision("c-2", Action.NONE, True, "gpucluster: ...", ("gpu_count",)),
    )
    (asked,) = double.asked
    assert asked.command.endswith("gpucluster-agent health react")
    assert json.loads(asked.text) == {"findings": [FINDING.to_dict()], "shadow": True}
    assert "gpu_count" not in asked.command


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"decisions": 3}', '{"decisions": [{"node": "c-1"}]}', '{"decisions": ["c-1"]}', "{"]
)
def test_an_answer_that_is_none_is_an_error_and_no_decision(text: str) -> None:
    health, _ = service(text, status=1, errors="first\nslurmctld does not answer\n")
    with pytest.raises(ToolError, match="slurmctld does not answer") as caught:
        health.react([FINDING])
    assert "gpucluster-health" in caught.value.hint


def test_a_controller_of_an_earlier_version_is_told_what_it_lacks() -> None:
    health, _ = service("", status=127, errors="command not found")
    with pytest.raises(ToolError, match="has no health service yet"):
        health.react([FINDING])
    assert service("")[0].react([]) == ()
