"""What a command costs the hosts of a local cloud, in counts that hardly depend on the machine, and their budgets.

tasks      Ansible's, of the controller and of a node (the most of any).
processes  that were started on the controller and on a node (the most of any), threads included: how far the numbers of
           processes have moved on (/proc/loadavg). The question itself is one of them, and what timers start.
kilobytes  that the controller and a node (the most of any) have received from others: ssh, packages, answers.
seconds    of a processor, of all hosts together (cpuacct of their control groups). They differ between machines.

A host that a command makes counts from its boot; one that it removes does not count.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucluster.localcloud.engine.protocol import LABEL_HOME

_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+) .*?skipped=(\d+) .*?rescued=(\d+)", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FILES = ("/etc/hostname", "/proc/loadavg", "/proc/net/dev")
_USAGE = "/sys/fs/cgroup/cpuacct/libpod_parent/libpod-{}/cpuacct.usage"

Costs = dict[str, float]


class Host(NamedTuple):
    """What a host has used since its boot: the number of its last process, bytes received, seconds of a processor."""

    processes: int = 0
    received: int = 0
    seconds: float = 0.0


def hosts(home: Path) -> dict[str, Host]:
    """The hosts of a local cloud, by their names."""
    argv = ("podman", "ps", "--no-trunc", "--quiet", f"--filter=label={LABEL_HOME}={home}")
    found = {}
    for container in _output(*argv).split():
        name, load, *network = _output("podman", "exec", container, "cat", *_FILES).splitlines()
        rows = [line.partition(":") for line in network]
        received = sum(int(numbers.split()[0]) for device, colon, numbers in rows if colon and device.strip() != "lo")
        found[name] = Host(int(load.split()[-1]), received, _seconds(container))
    return found


def _seconds(container: str) -> float:
    """0 where Podman's groups have another name: counts do not need it."""
    try:
        return int(Path(_USAGE.format(container)).read_text()) / 1e9
    except OSError:
        return 0.0


def recaps(state: Path) -> set[Path]:
    """What ansible-playbook has printed so far: files, below the folder of a cluster's state."""
    return set((state / "ansible/artifacts").glob("*/stdout"))


def tasks(recap: str) -> dict[str, int]:
    """The tasks of each host in the output of ansible-playbook: those that ran, were skipped, or were rescued."""
    found: dict[str, int] = {}
    for host, *counts in _RECAP.findall(_COLOUR.sub("", recap)):
        found[host] = found.get(host, 0) + sum(map(int, counts))
    return found


def between(before: Mapping[str, Host], after: Mapping[str, Host], printed: Iterable[Path], controller: str) -> Costs:
    """The costs of a command.

    Args:
        before, after: from `hosts`. `printed`: the recaps that are new since.
        controller: its name.
    """
    used = {host: _since(before.get(host, Host()), now) for host, now in after.items()}
    counted: dict[str, Mapping[str, float]] = {
        "tasks": tasks("".join(file.read_text() for file in sorted(printed))),
        "processes": {host: each.processes for host, each in used.items()},
        "kilobytes": {host: each.received // 1000 for host, each in used.items()},
    }
    found: Costs = {}
    for kind, of_hosts in counted.items():
        nodes = [value for host, value in of_hosts.items() if host not in (controller, "localhost")]
        found |= {f"{kind}_controller": of_hosts[controller]} if controller in of_hosts else {}
        found |= {f"{kind}_node": max(nodes)} if nodes else {}
    return found | {"seconds_hosts": round(sum(each.seconds for each in used.values()), 1)}


def _since(before: Host, now: Host) -> Host:
    return Host(*(new - old for old, new in zip(before, now, strict=True)))  # type: ignore[arg-type]  # same fields


class Room(NamedTuple):
    """By how much a cost may be larger than its budget: `percent` of it, and `more` in its own unit."""

    percent: int = 0
    more: int = 0


def over(measured: Mapping[str, Costs], budget: Mapping[str, Costs], room: Mapping[str, Room]) -> list[str]:
    """What costs more than its budget and the room beside it, in words; and what has no budget.

    Args:
        room: of each kind. A kind that is not in it is not held.
    """
    found = []
    for verb, costs in measured.items():
        for name, cost in costs.items():
            kind = name.partition("_")[0]
            limit = budget.get(verb, {}).get(name)
            if kind not in room:
                continue
            if limit is None:
                found.append(f"{verb}: {name} has no budget")
            elif (cost - room[kind].more) * 100 > limit * (100 + room[kind].percent):
                found.append(f"{verb}: {name} is {cost:g}, and its budget is {limit:g}")
    return found


def as_toml(measured: Mapping[str, Costs], writer: str) -> str:
    """A file of budgets. `writer`: what writes it."""
    why = "A change that needs more has its reason in the commit message."
    lines = [f"# What each verb may cost: {writer} writes this file. {why}"]
    for verb, costs in measured.items():
        lines += ["", f'["{verb}"]', *(f"{name} = {cost:g}" for name, cost in costs.items())]
    return "\n".join(lines) + "\n"


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
