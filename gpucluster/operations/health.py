"""The health service on the controller, asked by ssh: it alone drains and undrains nodes for failed checks."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from gpucluster.controller.health.policy import Action
from gpucluster.errors import ToolError
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import Finding
from gpucluster.operations.controller import ControllerConnection
from gpucluster.text import printable
from gpucluster.verdict.repair import HealthDecision

_REACT = "sudo -n gpucluster-agent health react"
# Seconds: it asks slurmctld, which may be busy.
_TIMEOUT = 60.0
_NOT_FOUND = 127


class HealthService:
    """The health service of one cluster."""

    def __init__(self, controller: ControllerConnection) -> None:
        self._controller = controller

    def react(self, findings: Collection[Finding], *, shadow: bool = False) -> tuple[HealthDecision, ...]:
        """Send it the findings, and apply its decisions: drain nodes, or undrain those that it has drained.

        Args:
            findings: each passes or fails, and is about one node. Without any, nothing is asked.
            shadow: it only reports what it would do.

        Raises:
            ToolError: it does not answer, or refuses.
        """
        if not findings:
            return ()
        request = {"findings": [finding.to_dict() for finding in findings], "shadow": shadow}
        result = self._controller.ask(_REACT, text=json.dumps(request), timeout=_TIMEOUT)
        if result.returncode == _NOT_FOUND:
            raise ToolError("the controller has no health service yet", hint="Run: gpucluster apply")
        try:
            return tuple(_decision(each) for each in bounded.loads(result.stdout)["decisions"])
        except (KeyError, TypeError, ValueError):
            why = printable(result.stderr.strip().rpartition("\n")[2]) or f"status {result.returncode}"
            raise ToolError(
                f"the health service on the controller gives no answer: {why}",
                hint="See its log: gpucluster ssh -- sudo journalctl --unit gpucluster-health",
            ) from None


def _decision(raw: Any) -> HealthDecision:
    """From JSON. An action that this version does not know counts as none.

    Raises:
        KeyError, TypeError: it is not a decision.
    """
    known = raw["action"] in {action.value for action in Action}
    action = Action(raw["action"]) if known else Action.NONE
    return HealthDecision(
        str(raw["node"]), action, raw["done"] is True, str(raw["reason"]), tuple(map(str, raw["checks"]))
    )
