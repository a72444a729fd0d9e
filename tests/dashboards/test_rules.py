"""Recording rules and alerts, evaluated by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import promtool
from tests.dashboards.alert_cases import CASES, Case, Series

pytestmark = pytest.mark.slow


def _firing(alert: str, case: Case) -> list[dict[str, Any]]:
    """One series with the case's labels fires; no other."""
    named = ", ".join(case.labels)
    labels = ", ".join(f'{name}="{value}"' for name, value in case.labels.items())
    return [
        {
            "expr": f'count by ({named}) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
            "eval_time": case.at,
            "exp_samples": [{"labels": f"{{{labels}}}", "value": 1}],
        }
    ]


def _quiet(alert: str, case: Case) -> list[dict[str, Any]]:
    expr = f'count_over_time(ALERTS{{alertname="{alert}", alertstate="firing"}}[1h])'
    return [{"expr": expr, "eval_time": case.at, "exp_samples": []}]


def _packed(inputs: list[tuple[Series, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """As few scenarios as possible: each one costs a database. Those in one have no metric in common."""
    packs: list[tuple[Series, list[dict[str, Any]]]] = []
    for series, expectations in inputs:
        metrics = {name.partition("{")[0] for name in series}
        for pack, expected in packs:
            if metrics.isdisjoint(name.partition("{")[0] for name in pack):
                pack.update(series)
                expected.extend(expectations)
                break
        else:
            packs.append((dict(series), list(expectations)))
    return [promtool.scenario(str(place), *pack) for place, pack in enumerate(packs)]


def test_each_alert_has_both_cases() -> None:
    assert set(CASES) == {rule["alert"] for rule in promtool.rules("alert")}


def test_alerts_fire_and_keep_quiet(tmp_path: Path) -> None:
    inputs = [(case.fires, _firing(alert, case)) for alert, case in CASES.items()]
    inputs += [(case.quiet, _quiet(alert, case)) for alert, case in CASES.items()]
    promtool.run(tmp_path, _packed(inputs))


def test_alerts_say_how_serious_they_are_and_what_to_do() -> None:
    for rule in promtool.rules("alert"):
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
