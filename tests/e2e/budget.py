"""What commands and new nodes may cost on the clusters of these tests: counts, in budget.toml beside this file.

Each piece of work makes a cluster a little slower, and no measurement of time shows it: machines differ, and are busy.
UPDATE_BUDGET=1 writes what was measured as the new budget; a change that needs more gives the reason in its commit.
Seconds are held by benchmarks/budget.py, on a quiet machine.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.site_harness import Site
from tools import costs
from tools.costs import Room

FILE = Path(__file__).with_suffix(".toml")
#: On a busy machine a command takes longer: it asks more often whether something has come, and a timer may start some
#: hundred processes meanwhile, also beside a command that needs five.
ROOM = {"tasks": Room(3, 1), "processes": Room(30, 150), "kilobytes": Room(30, 500)}


@contextmanager
def held(site: Site, what: str) -> Iterator[None]:
    """A block that runs one command: it costs the hosts no more than its budget."""
    state = site.folder / ".gpucluster"
    before, printed = costs.hosts(site.home), costs.recaps(state)
    yield
    hold(what, costs.between(before, costs.hosts(site.home), costs.recaps(state) - printed, site.controller))


def hold_new_nodes(site: Site, what: str) -> None:
    """The nodes that have just come, and have done what they came for, cost no more since their boot."""
    found = costs.between({}, costs.hosts(site.home), (), site.controller)
    hold(what, {name: cost for name, cost in found.items() if name.endswith("_node")})


def hold(what: str, measured: costs.Costs) -> None:
    """Compare with the budget, or write it."""
    kept = {name: cost for name, cost in measured.items() if name.partition("_")[0] in ROOM}
    if os.environ.get("UPDATE_BUDGET"):
        with FILE.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # tests run side by side
            budget = {**tomllib.loads(file.read()), what: kept}
            file.seek(0)
            file.truncate()
            file.write(costs.as_toml(dict(sorted(budget.items())), "UPDATE_BUDGET=1 make test FILES=tests/e2e/..."))
        return
    found = costs.over({what: kept}, tomllib.loads(FILE.read_text()), ROOM)
    assert not found, f"{found}: look for the cause, or change {FILE.name} and say why"
