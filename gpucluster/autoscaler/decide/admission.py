"""Admission: what a gang must pass before anything is launched for it: cool-downs, node limits, launch rate, cost.

A gang is admitted as a whole or not at all. The checks read the plan builder and change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpucluster.autoscaler.decide import pools
from gpucluster.autoscaler.decide.plan_builder import HOUR, PlanBuilder
from gpucluster.autoscaler.decide.words import describe_fault
from gpucluster.cost.budget import with_above
from gpucluster.text import count


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a gang does not get its nodes now.

    Args:
        until: when it is worth trying again; 0 if that is not known.
        permanent: waiting does not help: the user or an administrator has to change something.
        pool_too_small: the gang is impossible in these pools; a larger pool of the partition may be able to take it.
    """

    why: str
    until: float = 0.0
    permanent: bool = False
    pool_too_small: bool = False


def check(builder: PlanBuilder, need: Mapping[str, int], accounts: Collection[str] = ()) -> Denial | None:
    """Why so many new nodes of these pools are not admitted now; None if they are.

    Args:
        need: new instances by pool.
        accounts: those that the jobs are charged to.
    """
    return (
        _impossible(builder, need)
        or (_over_budget(builder, accounts) if need else None)
        or _cooling(builder, need)
        or _too_many_nodes(builder, need)
        or _too_many_launches(builder, need)
        or _too_expensive(builder, need)
    )


def _impossible(builder: PlanBuilder, need: Mapping[str, int]) -> Denial | None:
    limits, total = builder.policy.limits, sum(need.values())
    for name, number in need.items():
        most = builder.policy.pools[name].max_nodes
        if number > most:
            words = f"it needs {count(number, 'node')} and pool {name} may have {most} (max_nodes)"
            return Denial(words, permanent=True, pool_too_small=True)
    if limits.max_nodes is not None and total > limits.max_nodes:
        return Denial(
            f"it needs {count(total, 'node')} and the cluster may have {limits.max_nodes} (max_nodes)", permanent=True
        )
    rate = limits.max_launches_per_hour
    if rate is not None and total > rate:
        return Denial(
            f"it needs {count(total, 'launch', 'launches')} and {rate} an hour are allowed (max_launches_per_hour)",
            permanent=True,
        )
    price, most_money = cost(builder, need), limits.max_cost_per_hour
    if most_money is not None and price > most_money:
        return Denial(
            f"its nodes cost {price:.2f} an hour and {most_money:.2f} are allowed (max_cost_per_hour)", permanent=True
        )
    return None


def _cooling(builder: PlanBuilder, need: Mapping[str, int]) -> Denial | None:
    for name in need:
        known = builder.cool_downs.get(name)
        if known is None:
            continue
        if known.until > builder.now:
            return Denial(f"pool {name} cools down: {describe_fault(known.fault, known.message)}", until=known.until)
        if known.probing:
            words = (
                f"pool {name} is probed with the nodes of one job after {describe_fault(known.fault, known.message)}"
            )
            return Denial(words, until=builder.now + builder.policy.times.backoff)
    return None


def _too_many_nodes(builder: PlanBuilder, need: Mapping[str, int]) -> Denial | None:
    for name, number in need.items():
        most, have = builder.policy.pools[name].max_nodes, builder.tally[name]
        if have + number > most:
            return Denial(f"it needs {count(number, 'more node')} and pool {name} has {have} of {most} (max_nodes)")
    most_of_all, all_have, total = builder.policy.limits.max_nodes, builder.tally.total(), sum(need.values())
    if most_of_all is not None and all_have + total > most_of_all:
        return Denial(
            f"it needs {count(total, 'more node')} and the cluster has {all_have} of {most_of_all} (max_nodes)"
        )
    return None


def _too_many_launches(builder: PlanBuilder, need: Mapping[str, int]) -> Denial | None:
    rate, total = builder.policy.limits.max_launches_per_hour, sum(need.values())
    if rate is None:
        return None
    recent = [at for at in builder.launched_at if at > builder.now - HOUR]
    over = len(recent) + total - rate
    if over <= 0:
        return None
    words = f"it needs {count(total, 'more node')}; {len(recent)} were launched in the last hour and {rate} are allowed"
    return Denial(f"{words} (max_launches_per_hour)", until=sorted(recent)[over - 1] + HOUR)


def _too_expensive(builder: PlanBuilder, need: Mapping[str, int]) -> Denial | None:
    most = builder.policy.limits.max_cost_per_hour
    if most is None:
        return None
    now, more = cost(builder, builder.tally), cost(builder, need)
    if more == 0 or now + more <= most:
        return None
    words = f"its nodes cost {more:.2f} an hour, {now:.2f} are being spent and {most:.2f} are allowed"
    return Denial(f"{words} (max_cost_per_hour)")


def _over_budget(builder: PlanBuilder, accounts: Collection[str]) -> Denial | None:
    """Why an account gets no new nodes. What runs is not touched, nor a gang that was admitted before."""
    budgets, spent = builder.policy.budgets, builder.observation.spent
    if budgets is None:
        return None
    named = dict.fromkeys(name for account in sorted(accounts) for name in with_above(account, budgets.parents))
    for name in named:
        amount = budgets.amounts.get(name)
        if amount is None:
            continue
        if spent is None:
            return Denial(f"what the account {name} has spent of its budget of this month is not known yet")
        if spent.get(name, 0.0) >= amount:
            words = f"the account {name} has spent its budget of this month, {amount:.2f} {budgets.currency}"
            return Denial(f"{words}, and gets no new nodes (monthly_budget)")
    return None


def cost(builder: PlanBuilder, nodes: Mapping[str, int]) -> float:
    """What so many nodes of these pools cost an hour; a shape without a price counts as 0."""
    policy = builder.policy
    return sum(number * (policy.price(name) or 0.0) for name, number in nodes.items() if name in policy.pools)


def fits_elsewhere(builder: PlanBuilder, partitions: tuple[str, ...], nodes: int) -> bool:
    """Whether a pool of these partitions may ever have so many nodes."""
    return any(pool.partition in partitions and pool.max_nodes >= nodes for pool in builder.policy.pools.values())


def elsewhere(builder: PlanBuilder, partitions: tuple[str, ...], nodes: int, without: frozenset[str]) -> bool:
    """Whether another pool of these partitions could take a job of so many nodes now."""
    return any(
        pool.partition in partitions
        and pool.max_nodes >= nodes
        and name not in without
        and not pools.closed(builder, name)
        for name, pool in builder.policy.pools.items()
    )
