"""What accounts have spent: with those below them, and without what has no price."""

from __future__ import annotations

from gpucluster.cost.budget import spending, with_above
from gpucluster.cost.model import Hardware, HostInterval, JobRun

HOUR = 3600.0
PARENTS = {"vision": "science", "science": "root", "a": "b", "b": "a"}


def host(name: str, pool: str, end: float = 10 * HOUR) -> HostInterval:
    return HostInterval(name, name, pool, {"shape": "X"}, Hardware(cpus=4), 0.0, end)


def run(account: str, node: str, cpus: float, begin: float = 0.0, end: float = 2 * HOUR) -> JobRun:
    return JobRun("1", "alice", account, [node], Hardware(cpus=cpus), begin, end)


def test_jobs_count_for_their_account_and_those_above_it() -> None:
    hosts = [host("x", "gpu"), host("o", "odd")]
    runs = [run("vision", "x", 2), run("science", "x", 1), run("", "x", 1), run("vision", "o", 4)]
    prices = {"gpu": 10.0, "odd": None}
    found = spending(hosts, runs, lambda one: [(0.0, prices[one.pool])], window=(HOUR, 99 * HOUR), parents=PARENTS)
    assert found.accounts == {"vision": 5.0, "science": 7.5, "root": 7.5}
    assert found.unpriced == ("odd",)


def test_accounts_above_one_another_end() -> None:
    assert list(with_above("vision", PARENTS)) == ["vision", "science", "root"]
    assert list(with_above("a", PARENTS)) == ["a", "b"]
    assert list(with_above("", PARENTS)) == []
