"""Recording rules and alerts, evaluated by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import promtool
from tests.dashboards.alert_cases import CASES, GPU, Case, Series

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


def test_an_xid_is_told_once_whatever_the_exporter_showed_before(tmp_path: Path) -> None:
    """By the values of the series, every 30 s: at which minute the alert fires, and at which it does not any more."""
    forms = {
        "0x10 79x200": (8, 60),  # exporters before 4.5.3 write 0 before
        "_x10 79x200": (8, 60),  # no series before the first Xid
        "13x10 79x200": (8, 60),  # the end of a user's program before
        "_x10 79x4 _x2 79x200": (8, 60),  # a scrape that was missed
        "79x100 _x2 79x100": (5, 60),  # and one long after: it is not a new Xid
    }
    told = []
    for number, (values, (yes, no)) in enumerate(forms.items()):
        firing = 'count(ALERTS{alertname="GpuXid", alertstate="firing"})'
        expected: list[dict[str, Any]] = [
            {"expr": firing, "eval_time": f"{yes}m", "exp_samples": [{"labels": "{}", "value": 1}]},
            {"expr": firing, "eval_time": f"{no}m", "exp_samples": []},
        ]
        told.append(promtool.scenario(f"form {number}", {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": values}, expected))
    promtool.run(tmp_path, told)


def test_alerts_state_how_serious_they_are_and_what_to_do() -> None:
    for rule in promtool.rules("alert"):
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
