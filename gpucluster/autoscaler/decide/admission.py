"""What a gang must pass before anything is launched for it: cool-downs, numbers, launches an hour, money.

A gang passes whole or not at all. The gates look; they change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpucluster.autoscaler.decide import pools
from gpucluster.autoscaler.decide.plan_builder import HOUR, Draft
from gpucluster.autoscaler.decide.words import count, fault


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang may not have its nodes now.

    Args:
        until: when it is worth trying again; 0 if nobody can know.
        never: no time makes it possible: only a person can.
        here: it is impossible in these pools; a larger one of the partition may do.
    """

    why: str
    until: float = 0.0
    never: bool = False
    here: bool = False


def refusal(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    """Why so many new nodes of these pools can't be had now; None if they can.

    Args:
        need: new instances by pool.
    """
    return (
        _impossible(draft, need)
        or _cooling(draft, need)
        or _numbers(draft, need)
        or _rate(draft, need)
        or _money(draft, need)
    )


def _impossible(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    limits, total = draft.policy.limits, sum(need.values())
    for name, wanted in need.items():
        most = draft.policy.pools[name].max_nodes
        if wanted > most:
            words = f"it needs {count(wanted, 'node')} and pool {name} may have {most} (max_nodes)"
            return Refusal(words, never=True, here=True)
    if limits.max_nodes is not None and total > limits.max_nodes:
        return Refusal(
            f"it needs {count(total, 'node')} and the cluster may have {limits.max_nodes} (max_nodes)", never=True
        )
    rate = limits.max_launches_per_hour
    if rate is not None and total > rate:
        return Refusal(
            f"it needs {count(total, 'launch').replace('launchs', 'launches')} and {rate} an hour are allowed "
            "(max_launches_per_hour)",
            never=True,
        )
    price, most_money = cost(draft, need), limits.max_cost_per_hour
    if most_money is not None and price > most_money:
        return Refusal(
            f"its nodes cost {price:.2f} an hour and {most_money:.2f} are allowed (max_cost_per_hour)", never=True
        )
    return None


def _cooling(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    for name in need:
        known = draft.cool_downs.get(name)
        if known is None:
            continue
        if known.until > draft.now:
            return Refusal(
                f"pool {name} is left alone for a while: {fault(known.fault, known.message)}", until=known.until
            )
        if known.probing:
            words = f"pool {name} is being tried with one job after {fault(known.fault, known.message)}"
            return Refusal(words, until=draft.now + draft.policy.times.backoff)
    return None


def _numbers(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    for name, wanted in need.items():
        most, have = draft.policy.pools[name].max_nodes, draft.tally[name]
        if have + wanted > most:
            return Refusal(f"it needs {count(wanted, 'more node')} and pool {name} has {have} of {most} (max_nodes)")
    most_of_all, all_have, total = draft.policy.limits.max_nodes, draft.tally.total(), sum(need.values())
    if most_of_all is not None and all_have + total > most_of_all:
        return Refusal(
            f"it needs {count(total, 'more node')} and the cluster has {all_have} of {most_of_all} (max_nodes)"
        )
    return None


def _rate(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    rate, total = draft.policy.limits.max_launches_per_hour, sum(need.values())
    if rate is None:
        return None
    recent = [at for at in draft.launched_at if at > draft.now - HOUR]
    over = len(recent) + total - rate
    if over <= 0:
        return None
    words = f"it needs {count(total, 'more node')}; {len(recent)} were launched in the last hour and {rate} are allowed"
    return Refusal(f"{words} (max_launches_per_hour)", until=sorted(recent)[over - 1] + HOUR)


def _money(draft: Draft, need: Mapping[str, int]) -> Refusal | None:
    most = draft.policy.limits.max_cost_per_hour
    if most is None:
        return None
    now, more = cost(draft, draft.tally), cost(draft, need)
    if more == 0 or now + more <= most:
        return None
    words = f"its nodes cost {more:.2f} an hour, {now:.2f} are being spent and {most:.2f} are allowed"
    return Refusal(f"{words} (max_cost_per_hour)")


def cost(draft: Draft, nodes: Mapping[str, int]) -> float:
    """What so many nodes of these pools cost an hour; a shape without a price costs nothing here."""
    known = draft.policy.pools
    return sum(
        number * draft.policy.prices.get(known[name].shape, 0.0) for name, number in nodes.items() if name in known
    )


def fits_elsewhere(draft: Draft, partitions: tuple[str, ...], nodes: int) -> bool:
    """Whether a pool of these partitions may ever have so many nodes."""
    return any(pool.partition in partitions and pool.max_nodes >= nodes for pool in draft.policy.pools.values())


def elsewhere(draft: Draft, partitions: tuple[str, ...], nodes: int, without: frozenset[str]) -> bool:
    """Whether another pool of these partitions could take a job of so many nodes."""
    return any(
        pool.partition in partitions
        and pool.max_nodes >= nodes
        and name not in without
        and not pools.closed(draft, name)
        for name, pool in draft.policy.pools.items()
    )
