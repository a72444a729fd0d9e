"""A report as a condition of the node's object.

kubectl is a double here; tests/controller/health/test_kubernetes.py has a real API server.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Status
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.health.node_object import condition, publish
from tests.controller.health.doubles import DRAINS, report
from tests.controller.kubernetes.objects import node


def test_the_condition_keeps_its_time_while_the_status_stays() -> None:
    bad = report("compute-1", {"disk": Status.FAIL, "other": Status.FAIL})
    first = condition([bad], DRAINS, {}, 1_000_000)
    assert (first["status"], first["reason"], first["message"]) == ("False", "ChecksFailed", "disk: disk is fail")
    later = condition([bad], DRAINS, first, 1_000_300)
    assert later["lastTransitionTime"] == first["lastTransitionTime"] != later["lastHeartbeatTime"]
    good = condition([report("compute-1", {"disk": Status.PASS, "gpu": Status.UNKNOWN})], DRAINS, later, 1_000_600)
    assert (good["status"], good["lastTransitionTime"]) == ("True", good["lastHeartbeatTime"])
    assert good["message"] == "not known: gpu: gpu is unknown"
    assert condition([report("compute-1", {"gpu": Status.UNKNOWN})], DRAINS, good, 1)["status"] == "Unknown"


class Away:
    """kubectl with an API server that is away at first, or for ever."""

    def __init__(self, failures: int) -> None:
        self.failures, self.written = failures, 0

    def get(self, _kind: str, name: str) -> dict[str, Any]:
        if self.failures:
            self.failures -= 1
            raise Failed("the API server gives no answer")
        return node(name)

    def run(self, *_words: str, text: str, where: str) -> str:
        self.written += bool(text and where)
        return ""


def test_a_report_waits_for_an_api_server_that_comes_back() -> None:
    """Else each upgrade of a control plane could leave failed units on nodes."""
    away, waited = Away(3), list[float]()
    made = report("compute-1", {"gpu": Status.PASS})
    publish(away, made, DRAINS, 1, wait=waited.append)  # type: ignore[arg-type]
    assert (away.written, len(waited)) == (1, 3)
    with pytest.raises(Failed, match="no answer"):
        publish(Away(2), made, DRAINS, 1, wait=waited.append, away_s=0)  # type: ignore[arg-type]
