"""What the verbs may cost, in counts that are the same on every machine; the limits are in budget.toml.

    python benchmarks/budget.py            measure, print a table; ends with 1 where something is over its budget
    python benchmarks/budget.py --write    write what was measured as the new budget

On the local cloud: a controller and two nodes, cached images. Of each verb:

tasks      Ansible's, of the controller and of a node (the most of any).
processes  that were started on the controller and on a node (the most of any), threads included: how far the numbers of
           processes have moved on (/proc/loadavg). The question itself is one of them, and what timers start.
seconds    of a processor: `operator` of the command and all that it waited for, `hosts` of all instances together
           (cpuacct of their control groups). They differ between machines: compare them on one only.

A cost is over its budget if it is larger by more than `ROOM`. Beside other work counts stay, and seconds do not.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for tests
from bench import Bench  # type: ignore[import-not-found]  # beside this file

FILE = Path(__file__).with_suffix(".toml")
CONTROLLER = "bench-controller"
_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+) .*?skipped=(\d+) .*?rescued=(\d+)", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Percent by which a cost may be larger than its budget. Retries and timers start processes.
ROOM = {"tasks": 0, "processes": 15, "seconds": 30}
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

Costs = dict[str, float]


def tasks(recap: str) -> dict[str, int]:
    """The tasks of each host in the output of ansible-playbook: those that ran, were skipped, or were rescued."""
    found: dict[str, int] = {}
    for host, *counts in _RECAP.findall(_COLOUR.sub("", recap)):
        found[host] = found.get(host, 0) + sum(map(int, counts))
    return found


def over(measured: Mapping[str, Costs], budget: Mapping[str, Costs]) -> list[str]:
    """What costs more than its budget and the room beside it, in words; and what has no budget."""
    found = []
    for verb, costs in measured.items():
        for name, cost in costs.items():
            limit = budget.get(verb, {}).get(name)
            if limit is None:
                found.append(f"{verb}: {name} has no budget")
            elif cost * 100 > limit * (100 + ROOM[name.partition("_")[0]]):
                found.append(f"{verb}: {name} is {cost:g}, and its budget is {limit:g}")
    return found


def most(of_hosts: Mapping[str, float], kind: str) -> Costs:
    """Of the controller, and of the node that has most."""
    nodes = [value for host, value in of_hosts.items() if host not in (CONTROLLER, "localhost")]
    found = {f"{kind}_controller": of_hosts[CONTROLLER]} if CONTROLLER in of_hosts else {}
    return found | ({f"{kind}_node": max(nodes)} if nodes else {})


class _Cluster(Bench):  # type: ignore[misc]  # beside this file
    """The cluster, and what its hosts have used."""

    def measure(self, nodes: int, words: tuple[str, ...]) -> Costs:
        """The costs of one command. A host that it makes counts from its boot; one that it removes does not count."""
        begun, before, outputs = _operator(), self._hosts(), set(self._outputs())
        self.run(nodes, *words)
        operator, after = _operator() - begun, self._hosts()
        recaps = "".join(file.read_text() for file in self._outputs() if file not in outputs)
        started = {host: float(now[0] - before.get(host, (0, 0.0))[0]) for host, now in after.items()}
        seconds = sum(now[1] - before.get(host, (0, 0.0))[1] for host, now in after.items())
        costs = {"seconds_operator": round(operator, 1), "seconds_hosts": round(seconds, 1)}
        return {**most(dict(tasks(recaps)), "tasks"), **most(started, "processes"), **costs}

    def _outputs(self) -> list[Path]:
        return list((self.folder / ".gpucluster/ansible/artifacts").glob("*/stdout"))

    def _hosts(self) -> dict[str, tuple[int, float]]:
        """Of each host the number of its last process, and its processor seconds since its boot."""
        own = f"--filter=label=gpucluster.home={self.folder / 'cloud'}"
        containers = _output("podman", "ps", "--no-trunc", "--quiet", own).split()
        found = {}
        for container in containers:
            host, load = _output("podman", "exec", container, "cat", "/etc/hostname", "/proc/loadavg").splitlines()
            used = Path(f"/sys/fs/cgroup/cpuacct/libpod_parent/libpod-{container}/cpuacct.usage").read_text()
            found[host] = int(load.split()[-1]), int(used) / 1e9
        return found


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _operator() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure() -> dict[str, Costs]:
    """What each verb costs."""
    cluster = _Cluster()
    try:
        cluster.run(2, "local", "start")
        return {verb: cluster.measure(nodes, words) for verb, (nodes, words) in VERBS.items()}
    finally:
        cluster.close()


def as_toml(measured: Mapping[str, Costs]) -> str:
    """The file of budgets."""
    lines = ["# What each verb may cost: budget.py writes this file. A change that needs more says why in its commit."]
    for verb, costs in measured.items():
        lines += ["", f'["{verb}"]', *(f"{name} = {cost:g}" for name, cost in costs.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    measured = measure()
    budget = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    for verb, costs in measured.items():
        print(verb)
        for name, cost in costs.items():
            print(f"    {name:<24}{cost:10g}   budget {budget.get(verb, {}).get(name, '-')}")
    if options.write:
        FILE.write_text(as_toml(measured))
        return 0
    found = over(measured, budget)
    print("\n".join(found) or "nothing is over its budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
