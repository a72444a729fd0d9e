"""Rules of elastic pools: partitions that agree, accounting, the autoscaler's limits and its price file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from gpucluster import shapes
from gpucluster.spec import document, fields, service
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft, is_elastic
from gpucluster.spec.wording import alike, shown

_PRICES: Path = ("autoscaler", "prices_file")
_CAP: Path = ("autoscaler", "max_cost_per_hour")
_EXAMPLE = "One line a shape: `BM.GPU4.8: 24.4`"


def check_elastic(draft: Draft) -> None:
    """Note every fault of elastic pools and of `autoscaler`; the price file is read."""
    elastic = {name: pool for name, pool in draft.section("pools").items() if is_elastic(pool)}
    if elastic and draft.section("slurm").get("accounting") is False:
        first = next(iter(elastic))
        message = f"the elastic pool {first} needs it: the autoscaler has its rights in Slurm through the accounting"
        draft.fault(("slurm", "accounting"), message, "Write true, or let max_count of every pool be its count")
    _idle_times(draft, elastic)
    _times(draft)
    _prices(draft, elastic)


def _idle_times(draft: Draft, elastic: Mapping[str, Any]) -> None:
    """Slurm knows one idle time for each partition."""
    first: dict[Any, tuple[str, Any]] = {}
    for name, pool in elastic.items():
        partition, seconds = pool.get("partition"), pool.get("idle_timeout")
        if not isinstance(partition, str) or not isinstance(seconds, int):
            continue
        other, theirs = first.setdefault(partition, (name, seconds))
        if seconds != theirs:
            message = f"is {seconds}, but {theirs} in pool {other}: both are in the partition {partition}"
            hint = "Write the same in both, or give each a partition of its own"
            draft.fault(("pools", name, "idle_timeout"), message, hint)


def _times(draft: Draft) -> None:
    for name in draft.section("autoscaler", "times"):
        if name not in service.TIME_NAMES:
            hint = alike(str(name), service.TIME_NAMES) or f"Known: {', '.join(sorted(service.TIME_NAMES))}"
            draft.fault(("autoscaler", "times", name), "unknown time", hint, key=True)


def _prices(draft: Draft, elastic: Mapping[str, Any]) -> None:
    section = draft.section("autoscaler")
    if "prices_file" not in section:
        return  # it is unfit, and told
    name, cap = section["prices_file"], section.get("max_cost_per_hour")
    if name is None:
        if cap is not None:
            draft.fault(_CAP, "needs the prices of the shapes", "Add `prices_file: prices.yml`", key=True)
        return
    prices = _read_prices(draft, name)
    if prices is None:
        return
    draft.prices = prices
    if cap is None:
        return
    for pool, wish in elastic.items():
        shape = wish.get("shape")
        if isinstance(shape, str) and shape in shapes.catalogue() and shape not in prices:
            message = f"has no price for {shape}, the shape of the elastic pool {pool}"
            draft.fault(_PRICES, message, "Without one, max_cost_per_hour can't be kept")


def _read_prices(draft: Draft, name: str) -> dict[str, float] | None:
    try:
        file = fields.located(name, draft.directory)
        with file.open("rb") as stream:
            raw = stream.read(document.MAX_BYTES + 1)
    except RuntimeError:
        draft.fault(_PRICES, f"there is no user whose home {shown(name)} could be in")
        return None
    except FileNotFoundError:
        draft.fault(_PRICES, f"there is no file {name}", _EXAMPLE)
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        draft.fault(_PRICES, f"{name} can't be read: {reason}")
        return None
    return _checked_prices(draft, file, raw)


def _checked_prices(draft: Draft, file: FilePath, raw: bytes) -> dict[str, float] | None:
    """The prices of a file; its faults are shown at their places in it."""
    read = document.read(raw, str(file))
    entries = read.data if isinstance(read.data, dict) else {}
    for shape, price in entries.items():
        if (shape,) in read.unfit:
            continue
        if shape not in shapes.catalogue():
            near = shapes.suggestions(shape)
            hint = f"Did you mean {' or '.join(near)}?" if near else ""
            read.fault((shape,), f"unknown shape {shown(shape)}", hint, key=True)
        elif isinstance(price, bool) or not isinstance(price, (int, float)) or not price > 0:
            read.fault((shape,), f"must be the price of an hour, above 0; got {shown(price)}", _EXAMPLE)
    draft.document.findings.extend(read.findings)
    return None if read.findings else {shape: float(price) for shape, price in entries.items()}
