"""What the Prometheus of this host scrapes, and whether its rules work: for `verify`."""

from __future__ import annotations

import time
from typing import Any

from gpucluster.agent.errors import AgentError
from gpucluster.agent.monitor.prometheus import Prometheus

_SECONDS = 15.0


def of(prometheus: Prometheus) -> dict[str, Any]:
    """The targets with their health (up, down, unknown: not scraped yet), and the rules with their faults. Where
    Prometheus does not answer, `prometheus` is false, and `why` says why."""
    until = time.monotonic() + _SECONDS
    try:
        targets = prometheus.ask("/api/v1/targets?state=active", until=until)["activeTargets"]
        groups = prometheus.ask("/api/v1/rules", until=until)["groups"]
        return {
            "prometheus": True,
            "why": "",
            "targets": [
                {
                    "job": each["labels"].get("job", ""),
                    "node": each["labels"].get("node", ""),
                    "instance": each["labels"].get("instance", ""),
                    "health": each["health"],
                    "error": str(each.get("lastError", ""))[:300],
                }
                for each in targets
            ],
            "rules": [
                {"group": group["name"], "name": rule["name"], "health": rule["health"],
                 "error": str(rule.get("lastError", ""))[:300]}
                for group in groups
                for rule in group["rules"]
            ],
        }  # fmt: skip
    except AgentError as error:
        why = error.message
    except (KeyError, TypeError) as error:
        why = f"the answer of Prometheus can't be read: {error!r}"
    return {"prometheus": False, "why": why, "targets": [], "rules": []}
