"""What accounts have spent of a budget: the shares of their jobs, with those of the accounts below them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpucluster.cost.attribute import attribute
from gpucluster.cost.model import HostInterval, JobRun, PriceOf


@dataclass(frozen=True)
class Spending:
    """What was spent in a time.

    Args:
        accounts: account -> money of its jobs and of those of the accounts below it.
        unpriced: pools in which jobs ran, and whose price is not known: they are not in the money.
    """

    accounts: Mapping[str, float] = field(default_factory=dict)
    unpriced: tuple[str, ...] = ()


def spending(
    hosts: Iterable[HostInterval],
    runs: Iterable[JobRun],
    price_of: PriceOf,
    *,
    window: tuple[float, float],
    parents: Mapping[str, str],
) -> Spending:
    """What each account has spent.

    Args:
        parents: account -> the account above it.
    """
    money: defaultdict[str, float] = defaultdict(float)
    unpriced: set[str] = set()
    for share in attribute(hosts, runs, price_of, window=window):
        if share.run is None:
            continue
        if share.money is None:
            unpriced.add(share.host.pool)
            continue
        for account in with_above(share.run.account, parents):
            money[account] += share.money
    return Spending(dict(money), tuple(sorted(unpriced)))


def with_above(account: str, parents: Mapping[str, str]) -> Iterator[str]:
    """An account, and the accounts above it."""
    seen: set[str] = set()
    while account and account not in seen:
        seen.add(account)
        yield account
        account = parents.get(account, "")
