"""What an hour of a cluster costs, before and after a change. Pure.

The hosts come from the values of cluster.yml, those of the last apply and those of now: so both are counted alike. A
shape has the price of `autoscaler.prices_file`, if that has one; else the list price, times `cloud.price_factor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster import prices, shapes
from gpucluster.prices import Machine, PriceList

PriceOf = Callable[[Machine], float | None]


@dataclass(frozen=True)
class HourlyPrice:
    """What the hosts of a cluster cost an hour: instances, without volumes, file systems and traffic.

    Args:
        before: of the permanent hosts before the change; None if they are not known.
        after: of those that cluster.yml asks for.
        at_limits: the same with all elastic nodes that the limits allow.
        unknown: shapes without a known price: their hosts are counted with 0.
        currency: of all prices.
        source: where the prices are from, with the day.
    """

    before: float | None
    after: float
    at_limits: float
    unknown: tuple[str, ...]
    currency: str
    source: str


def hourly_price(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], listed: PriceList, own: Mapping[str, float]
) -> HourlyPrice:
    """What an hour costs.

    Args:
        before: the values of cluster.yml at the last apply, as `updates.recorded` has them; empty for no cluster, None
            if they are not known.
        after: the same of now.
        own: the prices of `autoscaler.prices_file`, by shape.
    """
    factor = after["cloud"]["price_factor"]
    unknown: set[str] = set()

    def price_of(machine: Machine) -> float:
        price = prices.hourly(machine, listed, own, factor)
        if price is None:
            unknown.add(machine.shape)
        return price or 0.0

    permanent = _permanent(after, price_of)
    return HourlyPrice(
        None if before is None else round(_permanent(before, price_of) if before else 0.0, 4),
        round(permanent, 4),
        round(permanent + _elastic(after, price_of), 4),
        tuple(sorted(unknown)),
        prices.CURRENCY,
        source_of(listed, own, factor),
    )


def _permanent(values: Mapping[str, Any], price_of: Callable[[Machine], float]) -> float:
    return sum(count * price_of(machine) for machine, count in _hosts(values) if count)


def _hosts(values: Mapping[str, Any]) -> Iterator[tuple[Machine, int]]:
    """The permanent hosts: each kind of machine, and how many."""
    yield _machine(values["controller"]), 2 if values["controller"].get("standby") else 1
    yield _machine(values["login"]), values["login"]["count"]
    for pool in values["pools"].values():
        yield _machine(pool), pool["count"]


def _elastic(values: Mapping[str, Any], price_of: Callable[[Machine], float]) -> float:
    """What the elastic nodes cost that the limits allow: the dearest ones, where not all pools can be full."""
    limits = values["autoscaler"]
    nodes = sorted(
        (
            price_of(_machine(pool))
            for pool in values["pools"].values()
            for _ in range(max(pool["max_count"] - pool["count"], 0))
        ),
        reverse=True,
    )
    cost = sum(nodes[: limits["max_nodes"]] if limits["max_nodes"] is not None else nodes)
    return min(cost, limits["max_cost_per_hour"]) if limits["max_cost_per_hour"] is not None else cost


def _machine(values: Mapping[str, Any]) -> Machine:
    shape = shapes.get(values["shape"])
    return Machine(
        values["shape"],
        shape.gpus,
        values["ocpus"] or (shape.sockets or 0) * (shape.cores_per_socket or 0),
        values["memory_gb"] or shape.memory_gib or 0,
        bool(values.get("preemptible")),
    )


def source_of(listed: PriceList, own: Mapping[str, float], factor: float) -> str:
    """Where prices are from, with the day."""
    text = f"Oracle's public list of {listed.updated}"
    if factor != 1:
        text += f", times {factor:g} (cloud.price_factor)"
    return f"{text}; {', '.join(sorted(own))} of autoscaler.prices_file" if own else text
