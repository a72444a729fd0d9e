"""Rules of elastic pools and of `autoscaler`: accounting, idle times, times, cost limit and price file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from gpucluster import shapes
from gpucluster.spec import document
from gpucluster.spec.defaults import is_elastic
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields, slurm
from gpucluster.text import did_you_mean

_PRICES: Path = ("autoscaler", "prices_file")
_COST_LIMIT: Path = ("autoscaler", "max_cost_per_hour")
_EXAMPLE = "Write one line per shape: `BM.GPU4.8: 24.4`"

RULES = (
    "An elastic pool (its `max_count` is above its `count`) needs `slurm.accounting`.",
    "Elastic pools of one partition have the same `idle_timeout`.",
    "`autoscaler.max_cost_per_hour` needs `autoscaler.prices_file`, with a price for the shape of every elastic pool.",
)


def check(context: RuleContext) -> None:
    """Add every error of elastic pools and of `autoscaler`; the price file is read."""
    elastic = {name: pool for name, pool in context.section("pools").items() if is_elastic(pool)}
    if elastic and context.section("slurm").get("accounting") is False:
        first = next(iter(elastic))
        message = f"the elastic pool {first} needs it: accounting gives the autoscaler its permissions in Slurm"
        context.error(("slurm", "accounting"), message, "Write true, or set max_count of every pool to its count")
    _check_idle_times(context, elastic)
    _check_times(context)
    _check_prices(context, elastic)


def _check_idle_times(context: RuleContext, elastic: Mapping[str, Any]) -> None:
    """Slurm has one idle time per partition."""
    first: dict[Any, tuple[str, Any]] = {}
    for name, pool in elastic.items():
        partition, seconds = pool.get("partition"), pool.get("idle_timeout")
        if not isinstance(partition, str) or not isinstance(seconds, int):
            continue
        other, theirs = first.setdefault(partition, (name, seconds))
        if seconds != theirs:
            message = f"is {seconds}, but {theirs} in pool {other}: both are in the partition {partition}"
            hint = "Write the same value in both, or use two partitions"
            context.error(("pools", name, "idle_timeout"), message, hint)


def _check_times(context: RuleContext) -> None:
    for name in context.section("autoscaler", "times"):
        if name not in slurm.TIME_NAMES:
            hint = did_you_mean(str(name), slurm.TIME_NAMES) or f"Known: {', '.join(sorted(slurm.TIME_NAMES))}"
            context.error(("autoscaler", "times", name), "unknown time", hint, key=True)


def _check_prices(context: RuleContext, elastic: Mapping[str, Any]) -> None:
    section = context.section("autoscaler")
    if "prices_file" not in section:
        return  # it is invalid, and reported
    name, limit = section["prices_file"], section.get("max_cost_per_hour")
    if name is None:
        if limit is not None:
            context.error(_COST_LIMIT, "needs the prices of the shapes", "Add `prices_file: prices.yml`", key=True)
        return
    prices = _read_prices(context, name)
    if prices is None:
        return
    context.prices = prices
    if limit is None:
        return
    for name, pool in elastic.items():
        shape = pool.get("shape")
        if isinstance(shape, str) and shape in shapes.catalogue() and shape not in prices:
            message = f"has no price for {shape}, the shape of the elastic pool {name}"
            context.error(_PRICES, message, "max_cost_per_hour needs a price for every shape")


def _read_prices(context: RuleContext, name: str) -> dict[str, float] | None:
    try:
        file = fields.located(name, context.directory)
        with file.open("rb") as stream:
            raw = stream.read(document.MAX_BYTES + 1)
    except RuntimeError:
        context.error(_PRICES, f"there is no user with the home directory in {shown(name)}")
        return None
    except FileNotFoundError:
        context.error(_PRICES, f"there is no file {name}", _EXAMPLE)
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        context.error(_PRICES, f"{name} can't be read: {reason}")
        return None
    return _checked_prices(context, file, raw)


def _checked_prices(context: RuleContext, file: FilePath, raw: bytes) -> dict[str, float] | None:
    """The prices in a file; its errors have their line and column in that file."""
    read = document.read(raw, str(file))
    entries = read.data if isinstance(read.data, dict) else {}
    for shape, price in entries.items():
        if (shape,) in read.invalid:
            continue
        if shape not in shapes.catalogue():
            read.error((shape,), f"unknown shape {shown(shape)}", shapes.hint_for_unknown(shape), key=True)
        elif isinstance(price, bool) or not isinstance(price, (int, float)) or not price > 0:
            read.error((shape,), f"must be the price per hour, above 0; got {shown(price)}", _EXAMPLE)
    context.document.findings.extend(read.findings)
    return None if read.findings else {shape: float(price) for shape, price in entries.items()}
