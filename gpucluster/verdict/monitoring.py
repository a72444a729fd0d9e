"""The check of the monitoring: by what Prometheus reports of its targets and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status
from gpucluster.text import count
from gpucluster.verdict.expectation import Expectation, cluster_check

_QUERY_SECONDS = 20.0
# So many targets and rules are named.
_SHOWN = 5


@cluster_check(
    "Prometheus scrapes every host", "monitoring", timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: ("",) if expected.monitoring else (),
    remedy="See on its host: sudo journalctl -u gpucluster-prometheus -u gpucluster-monitor",
)  # fmt: skip
def _monitoring(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    """Every target of a permanent host answers, and every rule works. Elastic nodes come and go: one that was removed
    is in the lists for some seconds more. What Prometheus has not scraped yet is neither a fault nor a proof."""
    status: Mapping[str, Any] = seen["monitoring"]
    if status.get("prometheus") is not True:
        has_answer = "prometheus" in status or "error" in status
        message = str(status.get("why") or status.get("error") or "it gives no reason")
        return CheckOutcome(Status.FAIL if has_answer else Status.UNKNOWN, message, status)
    hosts = {expected.controller, *expected.login, *expected.nodes}
    down = [each for each in status["targets"] if each["health"] == "down" and each["node"] in {"", *hosts}]
    waiting = [each for each in status["targets"] if each["health"] == "unknown" and each["node"] in {"", *hosts}]
    broken = [each for each in status["rules"] if each["health"] == "err"]
    evidence = {"up": status["up"], "down": down[:50], "broken rules": broken[:50]}
    problems = [f"{each['job']} of {each['node'] or each['instance']}: {each['error']}" for each in down[:_SHOWN]]
    problems += [f"and {count(len(down) - _SHOWN, 'more target')}"] if len(down) > _SHOWN else []
    problems += [f"rule {each['name']}: {each['error']}" for each in broken[:_SHOWN]]
    if problems:
        return CheckOutcome(Status.FAIL, "; ".join(problems), evidence)
    if not status["rules_total"]:
        return CheckOutcome(Status.FAIL, "Prometheus has no rules", evidence)
    up = f"{count(status['up'], 'target')} up"
    if waiting:
        named = ", ".join(f"{each['job']} of {each['node'] or each['instance']}" for each in waiting[:_SHOWN])
        return CheckOutcome(Status.WARN, f"{up}, {len(waiting)} not scraped yet: {named}", evidence)
    return CheckOutcome(Status.PASS, up, evidence)


CHECKS = (_monitoring,)
