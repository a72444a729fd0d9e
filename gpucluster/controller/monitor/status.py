"""What the Prometheus of this host scrapes, and whether its rules work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpucluster.controller.monitor.prometheus import Prometheus
from gpucluster.node_agent.errors import AgentError

_SECONDS = 15.0
_AGAIN_SECONDS = 2.0
_NOTHING: dict[str, Any] = {"up": 0, "targets": [], "rules_total": 0, "rules": []}


def of(prometheus: Prometheus, *, problems: bool) -> dict[str, Any]:
    """The targets with their health (up, down, unknown: not scraped yet), and the rules with theirs.

    Where Prometheus does not answer, `prometheus` is false, and `why` has the reason.

    Args:
        problems: only the targets that are not up, and the rules that do not work.
    """
    until = time.monotonic() + _SECONDS
    try:
        active = prometheus.ask("/api/v1/targets?state=active", until=until)["activeTargets"]
        groups = prometheus.ask("/api/v1/rules", until=until)["groups"]
        targets = [_target(each) for each in active]
        rules = [_rule(group["name"], rule) for group in groups for rule in group["rules"]]
    except AgentError as error:
        return {"prometheus": False, "why": error.message, **_NOTHING}
    except (KeyError, TypeError) as error:
        return {"prometheus": False, "why": f"the answer of Prometheus can't be read: {error!r}", **_NOTHING}
    return {
        "prometheus": True,
        "why": "",
        "up": sum(each["health"] == "up" for each in targets),
        "targets": [each for each in targets if not problems or each["health"] != "up"],
        "rules_total": len(rules),
        "rules": [each for each in rules if not problems or each["health"] == "err"],
    }


def settled(
    ask: Callable[[], dict[str, Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, Any]:
    """The status, after all targets had time to be scraped: they, or Prometheus itself, may just have started.

    Args:
        ask: gives the status, as `of` does.
        seconds: at most; the longest interval of a scrape, and some more.
    """
    until = clock() + seconds
    while True:
        result = ask()
        if all(each["health"] == "up" for each in result["targets"]) or clock() >= until:
            return result
        sleep(_AGAIN_SECONDS)


def _target(raw: Any) -> dict[str, str]:
    labels = raw["labels"]
    return {
        "job": labels.get("job", ""),
        "node": labels.get("node", ""),
        "instance": labels.get("instance", ""),
        "health": raw["health"],
        "error": str(raw.get("lastError", ""))[:300],
    }


def _rule(group: str, raw: Any) -> dict[str, str]:
    return {"group": group, "name": raw["name"], "health": raw["health"], "error": str(raw.get("lastError", ""))[:300]}
