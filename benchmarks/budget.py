"""What the verbs may cost, in counts that are the same on every machine; the limits are in budget.toml.

    python benchmarks/budget.py            measure, print a table; ends with 1 where something is over its budget
    python benchmarks/budget.py --write    write what was measured as the new budget

On the local cloud: a controller and two nodes, cached images. tools/costs.py states what is counted of hosts. Beside
it, `seconds_operator`: seconds of a processor that the command used, and all that it waited for; and what the kernel
counts on the whole machine (tools/kernel_counts.py), where it can.

A cost is over its budget if it is larger by more than `ROOM`. Beside other work counts stay, and seconds do not: they
are for one quiet machine. The suite holds the counts of more commands, and of elastic nodes (tests/e2e/budget.py).
"""

from __future__ import annotations

import argparse
import resource
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tools
sys.path.insert(0, str(Path(__file__).resolve().parent))  # for tests
from bench import Bench  # type: ignore[import-not-found]  # beside this file

from tools import costs, kernel_counts
from tools.costs import Room

FILE = Path(__file__).with_suffix(".toml")
CONTROLLER = "bench-controller"
#: Retries start processes, and so do timers, whatever the command.
ROOM = {
    "tasks": Room(), "processes": Room(15, 10), "kilobytes": Room(15, 10), "seconds": Room(30),
    "ssh": Room(10, 3), "syncs": Room(20, 10), "files": Room(20, 50),
}  # fmt: skip
#: Verb -> nodes of the pool, words of the command. The third node is there from "one node more" on.
VERBS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "first apply": (2, ("apply",)),
    "nothing to do": (2, ("apply",)),
    "verify": (2, ("verify",)),
    "plan": (2, ("plan",)),
    "status": (2, ("status",)),
    "one node more": (3, ("apply",)),
    "destroy": (3, ("destroy", "--delete-data")),
}


class _Cluster(Bench):  # type: ignore[misc]  # beside this file
    """The cluster, and what its hosts have used."""

    def measure(self, nodes: int, words: tuple[str, ...]) -> costs.Costs:
        """The costs of one command."""
        state, home = self.folder / ".gpucluster", self.folder / "cloud"
        begun, before, printed = _operator(), costs.hosts(home), costs.recaps(state)
        with kernel_counts.counted() as counted:
            self.run(nodes, *words)
        operator = round(_operator() - begun, 1)
        found = costs.between(before, costs.hosts(home), costs.recaps(state) - printed, CONTROLLER)
        return {**found, "seconds_operator": operator, **counted}


def _operator() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure() -> dict[str, costs.Costs]:
    """What each verb costs."""
    cluster = _Cluster()
    try:
        cluster.run(2, "local", "start")
        return {verb: cluster.measure(nodes, words) for verb, (nodes, words) in VERBS.items()}
    finally:
        cluster.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    measured = measure()
    budget = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    for verb, of_verb in measured.items():
        print(verb)
        for name, cost in of_verb.items():
            print(f"    {name:<24}{cost:10g}   budget {budget.get(verb, {}).get(name, '-')}")
    if options.write:
        FILE.write_text(costs.as_toml(measured, "budget.py"))
        return 0
    found = costs.over(measured, budget, ROOM)
    print("\n".join(found) or "nothing is over its budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
