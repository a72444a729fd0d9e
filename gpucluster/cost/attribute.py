"""Divides each instance among the jobs that ran on it.

The rule for jobs that share a node: a run has of a node the largest of its parts of the node's processors, memory and
GPUs, because no other job can use a node whose memory or GPUs are taken. What a run has of several nodes is divided
evenly among them: the accounting has only the sum. If the parts of a node's runs are more than the node together, each
is lowered in proportion. What they leave is `unused`; a node without a run is `idle`. So the shares of an instance
always add up to the instance, and jobs never pay for more than there is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from gpucluster.cost.model import SERVICES, Hardware, HostInterval, JobRun, PriceOf, Prices, Share, Use

#: A part that is left of a node by rounding is none.
_NOTHING = 1e-9


def attribute(
    hosts: Iterable[HostInterval],
    runs: Iterable[JobRun],
    price_of: PriceOf,
    *,
    window: tuple[float, float],
    cuts: Sequence[float] = (),
) -> Iterator[Share]:
    """Every share of every instance within the window.

    Args:
        window: from when until when.
        cuts: times at which shares are cut, such as the beginnings of days, in order.
    """
    by_name = _runs_by_node(runs)
    names: defaultdict[str, list[HostInterval]] = defaultdict(list)
    for host in hosts:
        names[host.name].append(host)
    for name, instances in names.items():
        instances.sort(key=lambda one: one.begin)
        pending = by_name.get(name, [])
        for number, host in enumerate(instances):
            # Two instances may have the name for a moment, while the old one ends: jobs are on the new one.
            following = instances[number + 1].begin if number + 1 < len(instances) else float("inf")
            pending = [run for run in pending if run.end > host.begin]
            yield from _of_host(host, pending, price_of(host), following, window, cuts)


def uncovered(
    runs: Iterable[JobRun], shares: Iterable[Share], window: tuple[float, float], recorded_since: float
) -> Mapping[str, float]:
    """By node, the seconds of runs for which no instance is known.

    A run has its nodes some seconds before their instances are launched, and keeps them until Slurm notices that an
    instance has ended; one that did not get its nodes never had any instance. So only runs of before the records count.

    Args:
        recorded_since: since when instances are recorded.
    """
    covered = {(id(share.run), share.host.name) for share in shares if share.run is not None}
    left: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        seconds = min(run.end, window[1]) - max(run.begin, window[0])
        for name in run.nodes if seconds > 0 and run.begin < recorded_since else ():
            if (id(run), name) not in covered:
                left[name] += seconds
    return dict(sorted(left.items()))


def part_of(run: JobRun, host: Hardware) -> float:
    """The part of one of its nodes that a run has, from 0 to 1."""
    nodes = max(len(run.nodes), 1)
    pairs = (
        (run.resources.cpus, host.cpus),
        (run.resources.memory_mib, host.memory_mib),
        (run.resources.gpus, host.gpus),
    )
    return min(1.0, max((has / nodes / whole for has, whole in pairs if whole > 0), default=1.0))


def _runs_by_node(runs: Iterable[JobRun]) -> dict[str, list[JobRun]]:
    by_name: defaultdict[str, list[JobRun]] = defaultdict(list)
    for run in runs:
        if run.end > run.begin:
            for name in run.nodes:
                by_name[name].append(run)
    for listed in by_name.values():
        listed.sort(key=lambda run: run.begin)
    return dict(by_name)


def _of_host(
    host: HostInterval,
    runs: Sequence[JobRun],
    prices: Prices,
    following: float,
    window: tuple[float, float],
    cuts: Sequence[float],
) -> Iterator[Share]:
    begin, end = max(host.begin, window[0]), min(host.end, window[1])
    if end <= begin:
        return
    mine = [run for run in runs if run.begin < min(end, following) and run.end > begin]
    moments = {begin, end}
    moments.update(cuts[bisect_right(cuts, begin) : bisect_left(cuts, end)])
    moments.update(since for since, _ in prices if begin < since < end)
    for run in mine:
        moments.update(at for at in (run.begin, run.end, following) if begin < at < end)
    ordered = sorted(moments)
    active: list[JobRun] = []
    following_run = 0
    for at, until in pairwise(ordered):
        while following_run < len(mine) and mine[following_run].begin <= at:
            active.append(mine[following_run])
            following_run += 1
        active = [run for run in active if run.end > at]
        yield from _at_once(host, active if at < following else [], (at, until), _price_at(prices, at))


def _at_once(
    host: HostInterval, runs: Sequence[JobRun], time: tuple[float, float], price: float | None
) -> Iterator[Share]:
    """The shares while nothing changes."""
    parts = [part_of(run, host.hardware) for run in runs]
    scale = max(sum(parts), 1.0)
    for run, part in zip(runs, parts, strict=True):
        yield Share(*time, host, Use.JOB, part / scale, price, run)
    left = 1.0 - sum(parts) / scale
    if not runs:
        yield Share(*time, host, Use.SERVICE if host.pool in SERVICES else Use.IDLE, 1.0, price)
    elif left > _NOTHING:
        yield Share(*time, host, Use.UNUSED, left, price)


def _price_at(prices: Prices, at: float) -> float | None:
    known = [price for since, price in prices if since <= at]
    if known:
        return known[-1]
    return prices[0][1] if prices else None
