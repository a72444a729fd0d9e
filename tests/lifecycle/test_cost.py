"""What a cluster has cost, from the answer of a controller: the window, the prices of the time, and what is not in it.

The double answers what `gpucluster-agent accounts usage` prints; tests/e2e/test_people.py asks a real one.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from gpucluster.cost.model import Use
from gpucluster.errors import InputError, ToolError
from gpucluster.lifecycle.cost import CostReport, Costs
from gpucluster.operations.controller import ControllerConnection
from gpucluster.prices import PriceList
from gpucluster.process import Completed
from gpucluster.spec import ClusterSpec, loads
from tests.doubles.controller import Asked, ControllerDouble
from tests.doubles.controller import said as reply
from tests.spec.spec_texts import MINIMAL

TEXT = MINIMAL + "software: {timezone: Europe/Berlin}\n"
ZONE = ZoneInfo("Europe/Berlin")
HOUR = 3600.0
MACHINE = {
    "shape": "BM.GPU4.8",
    "gpus": 8,
    "ocpus": 64,
    "memory_gb": 2048,
    "cpus": 128,
    "memory_mib": 2000000,
    "devices": 8,
}
LISTS = (PriceList("2026-01-01", {"B92740": 3.0}), PriceList("2026-11-15", {"B92740": 2.0}))


def moment(*parts: int) -> float:
    return datetime(*parts, tzinfo=ZONE).timestamp()  # type: ignore[misc, arg-type]


NOW = moment(2026, 11, 20)


def host(name: str, began: float, ended: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "pool": "gpu",
        "machine": MACHINE,
        "began": began,
        "ended": ended,
        "unsure": 0.0,
        **more,
    }


def asked(
    hosts: list[dict[str, Any]], jobs: str = "", *, text: str = TEXT, lists: tuple[PriceList, ...] = LISTS
) -> tuple[Costs, ControllerDouble]:
    controller = ControllerDouble(json.dumps({"hosts": hosts, "jobs": jobs, "recorded_since": NOW - 10.0}))
    spec: ClusterSpec = loads(text)
    return Costs(spec, cast(ControllerConnection, controller), lambda: lists), controller


def report(
    *hosts: dict[str, Any], jobs: str = "", by: Any = "account", since: str | None = None, until: str | None = None
) -> CostReport:
    return asked(list(hosts), jobs)[0].report(by, since, until, NOW)


def test_this_month_until_now_in_the_zone_of_the_cluster() -> None:
    costs, controller = asked([host("gpu-1", 0.0)])
    found = costs.report("account", None, None, NOW)
    assert (found.since, found.until) == ("2026-11-01T00:00:00+01:00", "2026-11-20T00:00:00+01:00")
    assert f"--since {moment(2026, 11, 1)!r} --until {NOW!r}" in controller.commands[0]
    # 14 days and an hour at 24, the day of the new list begins in UTC; the rest at 16.
    assert found.total.total == pytest.approx((14 * 24 + 1) * 24.0 + (5 * 24 - 1) * 16.0)
    assert found.source == "Oracle's public list of 2026-11-15"


def test_a_job_by_each_key() -> None:
    begin = moment(2026, 11, 18)
    jobs = f"7|alice|vision|{begin:.0f}|{begin + HOUR:.0f}|cpu=32,mem=1G,gres/gpu=4|gpu-1\n"
    at = {"since": "2026-11-18", "until": "2026-11-18T02:00"}
    for by, key in (("user", "alice"), ("account", "vision"), ("job", "7")):
        rows = {row.key: row.to_dict() for row in report(host("gpu-1", 0.0), jobs=jobs, by=by, **at).rows}
        assert rows[key]["total"] == rows[key]["job"] == 8.0
        assert (rows["-"]["unused"], rows["-"]["idle"]) == (8.0, 16.0)
    assert [row.key for row in report(host("gpu-1", 0.0), jobs=jobs, by="pool", **at).rows] == ["gpu"]
    assert [row.key for row in report(host("gpu-1", 0.0), by="day").rows][:2] == ["2026-11-01", "2026-11-02"]


def test_what_has_no_price_or_no_record_is_named() -> None:
    odd = host("odd-1", NOW - HOUR, machine={"shape": "BM.GPU.MI300X.8", "gpus": 8})
    jobs = f"7|a|b|{NOW - HOUR:.0f}|{NOW:.0f}|cpu=1|gone-1\n"
    found = report(odd, host("late-1", NOW - 9 * HOUR, NOW - HOUR, unsure=2 * HOUR), jobs=jobs)
    assert found.unpriced == {"BM.GPU.MI300X.8": 1.0}
    assert found.uncovered == {"gone-1": 1.0}
    assert found.unsure_hours == 2.0
    assert found.to_dict()["total"]["unpriced_hours"] == 1.0


def test_own_prices_hold_at_any_time_and_the_factor_for_the_list(tmp_path: Any) -> None:
    (tmp_path / "prices.yml").write_text("BM.GPU4.8: 10.0\n")
    file = str(tmp_path / "cluster.yml")
    spec = loads(TEXT + "autoscaler: {prices_file: prices.yml}\n", file)
    controller = ControllerDouble(json.dumps({"hosts": [host("gpu-1", NOW - HOUR)], "jobs": "", "recorded_since": 0.0}))
    found = Costs(spec, cast(ControllerConnection, controller), lambda: LISTS).report("pool", None, None, NOW)
    assert found.total.total == pytest.approx(10.0)
    cheaper = TEXT.replace("provider: local", "provider: local, price_factor: 0.5")
    found = asked([host("gpu-1", NOW - HOUR)], text=cheaper)[0].report("pool", None, None, NOW)
    assert found.total.total == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("since", "until"), [("yesterday", None), ("2026-11-19", "2026-11-18"), ("2027-01-01", None), (None, "2026-10-01")]
)
def test_a_time_that_is_none_is_refused(since: str | None, until: str | None) -> None:
    with pytest.raises(InputError):
        report(since=since, until=until)


def test_a_cluster_without_accounting_and_a_controller_without_records() -> None:
    with pytest.raises(InputError, match="no accounting"):
        asked([], text=TEXT + "slurm: {accounting: false}\n")[0].report("user", None, None, NOW)
    for answer in ("", "{}", '{"hosts": [{}], "jobs": ""}', '{"hosts": [], "jobs": "x|y"}'):
        costs = Costs(loads(TEXT), cast(ControllerConnection, ControllerDouble(answer)), lambda: LISTS)
        with pytest.raises(ToolError, match="no records for costs"):
            costs.report("user", None, None, NOW)


def test_gpus_without_a_process_are_a_part_of_their_job() -> None:
    begin = moment(2026, 11, 18)
    jobs = f"7|alice|vision|{begin:.0f}|{begin + 2 * HOUR:.0f}|cpu=32,mem=1G,gres/gpu=4|gpu-1\n"
    series = [{"labels": {"job_id": "7"}, "values": [[NOW, 2.0]]}, {"labels": {"job_id": "9"}, "values": [[NOW, 5.0]]}]
    spec = loads(TEXT + "monitoring: {enabled: true}\n")
    rows = {"hosts": [host("gpu-1", 0.0)], "jobs": jobs, "recorded_since": 0.0}

    def answer(asked: Asked) -> Completed:
        if "monitor query" not in asked.command:
            return reply(json.dumps(rows))
        assert "max_over_time(gpucluster:job_gpus_idle:hours[10800s])" in asked.text
        return reply(json.dumps({"prometheus": True, "results": {"held": series}}))

    def held(controller: ControllerDouble) -> tuple[float, str]:
        costs = Costs(spec, cast(ControllerConnection, controller), lambda: LISTS)
        found = costs.report("account", "2026-11-18", "2026-11-18T03:00", NOW)
        assert found.total.money[Use.JOB] == 16.0
        return found.total.held, found.held_unknown

    # Two of its eight GPU hours.
    assert held(ControllerDouble(answer)) == (4.0, "")
    without = ControllerDouble(lambda asked: reply("" if "query" in asked.command else json.dumps(rows)))
    assert held(without) == (0.0, "Prometheus does not answer")
    assert report(host("gpu-1", 0.0)).held_unknown == "monitoring is off"
