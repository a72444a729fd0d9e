"""Money of a simulated year, against a sum that counts second by second without any of the code under test.

The generator makes what clusters have: elastic instances under names that are used again, nodes that fail within a job,
jobs that share a node, that are requeued, that run over midnight and over both changes of the clock, prices that
change, and shapes without a price.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from gpucluster.cost import report
from gpucluster.cost.attribute import attribute, part_of, uncovered
from gpucluster.cost.model import Hardware, HostInterval, JobRun, Prices, Share, Use

ZONE = ZoneInfo("Europe/Berlin")
YEAR = (datetime(2026, 1, 1, tzinfo=ZONE).timestamp(), datetime(2027, 1, 1, tzinfo=ZONE).timestamp())
HARDWARE = {
    "BM.GPU4.8": Hardware(128, 2_000_000, 8),
    "VM.Standard.E5.Flex": Hardware(4, 30_000, 0),
    "NoPrice": Hardware(8, 8_000, 1),
}
HOUR = 3600.0
TWO = YEAR[0] + 200 * 86400.0
PRICES: Mapping[str, Prices] = {
    "BM.GPU4.8": [(0.0, 24.4), (TWO, 20.0), (TWO + 3333.0, 21.5)],
    "VM.Standard.E5.Flex": [(0.0, 0.2)],
    "NoPrice": [(0.0, None)],
}


def price_of(host: HostInterval) -> Prices:
    return PRICES[host.shape]


def host(name: str, begin: float, end: float = math.inf, shape: str = "BM.GPU4.8", pool: str = "gpu") -> HostInterval:
    return HostInterval(f"ocid.{name}.{begin}", name, pool, {"shape": shape}, HARDWARE[shape], begin, end)


def run(number: int, nodes: Sequence[str], begin: float, end: float = math.inf, **has: float) -> JobRun:
    return JobRun(str(number), f"user{number % 5}", f"account{number % 3}", nodes, Hardware(**has), begin, end)


Sums = dict[tuple[str, Use], float]


@dataclass
class Year:
    hosts: list[HostInterval]
    runs: list[JobRun]


def simulated(seed: int, jobs: int) -> Year:
    chance = random.Random(seed)
    hosts, runs = [host("head", YEAR[0] - 99.0, shape="VM.Standard.E5.Flex", pool="controller")], []
    for shape, pool in (("BM.GPU4.8", "gpu"), ("VM.Standard.E5.Flex", "cpu"), ("NoPrice", "odd")):
        for number in range(1, 5):
            name, at = f"{pool}-e{number}", YEAR[0] - chance.uniform(0, 9) * HOUR
            while at < YEAR[1]:
                lives = chance.expovariate(1 / (30 * HOUR)) + 60
                hosts.append(host(name, at, at + lives, shape, pool))
                at += lives + chance.expovariate(1 / (20 * HOUR))
    hosts.append(host("gpu-1", YEAR[0] + 12345.5))
    by_pool: dict[str, list[HostInterval]] = defaultdict(list)
    for each in hosts[1:]:
        by_pool[each.pool].append(each)
    for number in range(jobs):
        first = chance.choice(by_pool[chance.choice(["gpu", "gpu", "cpu", "odd"])])
        begin = first.begin + chance.uniform(0, min(first.end, YEAR[1]) - first.begin)
        length = chance.expovariate(1 / (5 * HOUR)) + 1
        # Its node may fail: Slurm notices later than the instance has ended, or never, and the job goes on elsewhere.
        end = begin + length if chance.random() < 0.3 else min(begin + length, first.end)
        others = {
            one.name for one in by_pool[first.pool] if one.begin <= begin and one.end >= end and one.name != first.name
        }
        nodes = [first.name, *sorted(others)[: chance.choice([0, 0, 0, 1, 2])]]
        whole = first.hardware
        has = Hardware(
            *(
                chance.choice([0.1, 0.25, 0.5, 1.0]) * len(nodes) * most
                for most in (whole.cpus, whole.memory_mib, whole.gpus)
            )
        )
        one = replace(run(number, nodes, round(begin), round(end)), resources=has)
        runs.append(one)
        if chance.random() < 0.1:
            again = one.end + chance.uniform(1, 3) * 60
            runs.append(replace(one, begin=round(again), end=round(again + length)))
    # Over both changes of the clock, and over New Year on both sides.
    for eve in (datetime(2026, 3, 28, 22, tzinfo=ZONE), datetime(2026, 10, 24, 22, tzinfo=ZONE)):
        runs.append(run(jobs + 1, ["gpu-1"], eve.timestamp(), eve.timestamp() + 12 * HOUR, gpus=4))
    runs.append(run(jobs + 2, ["gpu-1"], YEAR[0] - HOUR, YEAR[0] + 20 * HOUR, gpus=8))
    runs.append(run(jobs + 3, ["gpu-1"], YEAR[1] - HOUR, math.inf, gpus=1))
    return Year(hosts, runs)


def brute_force(year: Year, window: tuple[float, float]) -> tuple[Sums, dict[str, float], float]:
    """Money by (account or pool, use) and by day, in steps of 20 seconds: no intervals, no sweep."""
    money: Sums = defaultdict(float)
    by_day: dict[str, float] = defaultdict(float)
    unpriced = 0.0
    for one in year.hosts:
        there = [each for each in year.runs if one.name in each.nodes]
        there = [each for each in there if each.begin < window[1] and each.end > window[0]]
        newer = [two.begin for two in year.hosts if two.name == one.name and two.begin > one.begin]
        at, until = max(one.begin, window[0]), min(one.end, window[1])
        while at < until:
            seconds = min(20.0 - at % 20.0, until - at)
            middle = at + seconds / 2
            price = [value for since, value in PRICES[one.shape] if since <= middle][-1]
            now = [
                each for each in there if each.begin <= middle < each.end and not any(two <= middle for two in newer)
            ]
            if price is None:
                unpriced += seconds / HOUR
            else:
                by_day[datetime.fromtimestamp(middle, ZONE).date().isoformat()] += price * seconds / HOUR
                add(money, one, now, price * seconds / HOUR)
            at += seconds
    return money, by_day, unpriced


def add(money: Sums, one: HostInterval, now: Sequence[JobRun], worth: float) -> None:
    parts = [portion(each, one.hardware) for each in now]
    scale = max(sum(parts), 1.0)
    for each, part in zip(now, parts, strict=True):
        money[each.account, Use.JOB] += worth * part / scale
    rest = Use.UNUSED if now else Use.SERVICE if one.pool == "controller" else Use.IDLE
    money[one.pool, rest] += worth * (1 - sum(parts) / scale)


def portion(each: JobRun, whole: Hardware) -> float:
    number, has = len(each.nodes), each.resources
    most = [has.cpus / number / whole.cpus, has.memory_mib / number / whole.memory_mib]
    if whole.gpus:
        most.append(has.gpus / number / whole.gpus)
    return min(max(most), 1.0)


def close(found: float, expected: float, of: float) -> bool:
    """Within 0.1 % of what a whole part costs."""
    return abs(found - expected) <= 0.001 * max(abs(expected), 0.01 * of)


@pytest.mark.slow
def test_a_year_costs_what_an_independent_sum_of_instance_seconds_costs() -> None:
    year = simulated(1, 3000)
    calendar = report.days(YEAR, ZONE)
    shares = list(attribute(year.hosts, year.runs, price_of, window=YEAR, cuts=calendar.begins))
    # The sum over a whole year: seconds times price, nothing of jobs.
    whole = 0.0
    for one in year.hosts:
        begin, end = max(one.begin, YEAR[0]), min(one.end, YEAR[1])
        edges = [begin, *(since for since, _ in PRICES[one.shape] if begin < since < end), end]
        for left, right in pairwise(edges):
            price = [value for since, value in PRICES[one.shape] if since <= left][-1]
            whole += (price or 0.0) * max(right - left, 0.0) / HOUR
    rows = report.summarize(shares, "account")
    assert close(report.total(rows).total, whole, whole)
    for by in report.BY:
        assert math.isclose(report.total(report.summarize(shares, by, calendar)).total, whole, rel_tol=1e-9)
    # By account, use, pool and day: second by second over some days around each change of the clock and of the price.
    for day in (
        datetime(2026, 3, 26, tzinfo=ZONE),
        datetime(2026, 7, 18, tzinfo=ZONE),
        datetime(2026, 10, 22, tzinfo=ZONE),
    ):
        window = (day.timestamp(), day.timestamp() + 5 * 86400.0)
        part = report.days(window, ZONE)
        found = list(attribute(year.hosts, year.runs, price_of, window=window, cuts=part.begins))
        money, by_day, unpriced = brute_force(year, window)
        sums: dict[tuple[str, Use], float] = defaultdict(float)
        for share in found:
            if share.money is not None:
                sums[share.run.account if share.run else share.host.pool, share.use] += share.money
        of = sum(money.values())
        assert {key for key, value in sums.items() if value} == {key for key, value in money.items() if value}
        assert all(close(sums[key], money[key], of) for key in money), {key: (sums[key], money[key]) for key in money}
        named = {row.key: row.total for row in report.summarize(found, "day", part)}
        assert all(close(named[name], by_day[name], of / 10) for name in by_day)
        assert close(report.total(report.summarize(found, "pool")).unpriced_hours, unpriced, unpriced)


def shares(
    hosts: Sequence[HostInterval], runs: Sequence[JobRun], window: tuple[float, float] = (0.0, 10 * HOUR)
) -> list[Share]:
    return list(attribute(hosts, runs, price_of, window=window))


def uses(found: Sequence[Share]) -> list[tuple[str, float, float, float]]:
    return [(share.use.value, share.begin / HOUR, share.end / HOUR, round(share.part, 4)) for share in found]


def test_a_run_has_the_largest_of_its_parts_and_the_rest_is_unused() -> None:
    found = shares([host("a", 0.0, 3 * HOUR)], [run(1, ["a"], HOUR, 2 * HOUR, cpus=16, gpus=2, memory_mib=100)])
    assert uses(found) == [("idle", 0, 1, 1.0), ("job", 1, 2, 0.25), ("unused", 1, 2, 0.75), ("idle", 2, 3, 1.0)]


def test_a_job_on_two_nodes_is_divided_evenly_and_one_without_hardware_has_all() -> None:
    one = run(1, ["a", "b"], 0.0, HOUR, gpus=8)
    assert part_of(one, HARDWARE["BM.GPU4.8"]) == 0.5
    assert part_of(one, Hardware()) == 1.0


def test_parts_that_are_more_than_the_node_are_lowered() -> None:
    runs = [run(1, ["a"], 0.0, HOUR, memory_mib=2_000_000), run(2, ["a"], 0.0, HOUR, gpus=4)]
    assert uses(shares([host("a", 0.0, HOUR)], runs)) == [("job", 0, 1, 0.6667), ("job", 0, 1, 0.3333)]


def test_a_node_that_fails_is_paid_until_its_instance_ends_and_the_next_run_is_on_the_next_one() -> None:
    hosts = [host("a", 0.0, 2 * HOUR), host("a", 3 * HOUR, 5 * HOUR)]
    runs = [run(1, ["a"], HOUR, 2.5 * HOUR, gpus=8), run(1, ["a"], 3.5 * HOUR, 5 * HOUR, gpus=8)]
    found = shares(hosts, runs)
    assert uses(found) == [("idle", 0, 1, 1.0), ("job", 1, 2, 1.0), ("idle", 3, 3.5, 1.0), ("job", 3.5, 5, 1.0)]
    assert uncovered(runs, found, (0.0, 10 * HOUR), 9 * HOUR) == {}


def test_while_two_instances_have_a_name_the_job_is_on_the_newer_one() -> None:
    found = shares([host("a", 0.0, 2 * HOUR), host("a", HOUR, 3 * HOUR)], [run(1, ["a"], HOUR, 3 * HOUR, gpus=8)])
    assert uses(found) == [("idle", 0, 2, 1.0), ("job", 1, 3, 1.0)]


def test_a_shape_without_a_price_has_hours_and_no_money() -> None:
    (row,) = report.summarize(shares([host("o", 0.0, HOUR, "NoPrice", "odd")], []), "pool")
    assert (row.total, row.unpriced_hours, row.hours) == (0.0, 1.0, {Use.IDLE: 1.0})


def test_a_run_on_a_node_that_no_record_has_is_named() -> None:
    runs = [run(1, ["gone"], 0.0, HOUR, gpus=1)]
    assert uncovered(runs, shares([], runs), (0.0, 10 * HOUR), HOUR) == {"gone": HOUR}
    # A node that was recorded, and never launched: its job waited.
    assert uncovered(runs, shares([], runs), (0.0, 10 * HOUR), 0.0) == {}
