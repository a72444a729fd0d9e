"""Slurm's running configuration against slurm.conf: what an administrator has changed by hand.

What can differ (Slurm 24.11.5):

- slurmctld has not read the present file: `scontrol show config` compares both (`HASH_VAL`, config_info.c);
- `scontrol setdebug` and `setdebugflags`, until slurmctld reads its file again (slurmctld's proc_req.c);
- `scontrol update` and `create` of nodes, partitions and reservations. With ReconfigFlags some of it outlives that.

Not drift: a node that is powered down, or out of service for a reason of gpucluster or of Slurm; the reservations that
gpucluster makes for maintenance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Callable

from gpucluster.controller.rules import slurm_nodes
from gpucluster.node_agent import programs
from gpucluster.node_agent.drift.recorded import Finding, finding
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.rules import reasons

CONF = Path("/etc/slurm/slurm.conf")
#: The beginning of the names of reservations that gpucluster makes.
OWN_RESERVATION = "gpucluster"
_SECONDS = 20.0
_LEVELS = ("quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5")
_UNLIMITED = ("-1", "infinite", "unlimited")
_DAY, _HOUR = 24 * 60, 60

Lines = Iterable[Mapping[str, str]]


def findings() -> list[Finding]:
    """What differs.

    Raises:
        Failed: Slurm does not answer.
    """
    conf = parsed(_joined(CONF.read_text(encoding="utf-8")))
    shown = {
        name: _ask("scontrol", "--oneliner", "show", name) for name in ("config", "node", "partition", "reservation")
    }
    return [
        *of_config(conf, shown["config"]),
        *of_nodes(conf, shown["node"], lambda text: _ask("scontrol", "show", "hostnames", text).split()),
        *of_partitions(conf, shown["partition"]),
        *of_reservations(shown["reservation"]),
    ]


def _ask(*argv: str) -> str:
    done = programs.call(argv, seconds=_SECONDS)
    if done.returncode != 0:
        raise Failed(f"Slurm does not answer: {done.stderr.strip()[-200:]}", "Run: systemctl status slurmctld")
    return done.stdout


# ---- the file


def _joined(text: str) -> str:
    return text.replace("\\\n", " ")


def parsed(text: str) -> list[dict[str, str]]:
    """The lines of a slurm.conf, by key in lower case. What other files have that it includes is not read."""
    lines = []
    for line in text.splitlines():
        bare = line.partition("#")[0].strip()
        pairs = re.findall(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)", bare)
        if pairs:
            lines.append({key.lower(): value.strip('"') for key, value in pairs})
    return lines


# ---- what runs


def of_config(conf: Lines, shown: str) -> Iterator[Finding]:
    """Whether slurmctld has read the file, and how much it logs."""
    running = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", shown, re.MULTILINE))
    file = running.get("SLURM_CONF", str(CONF))
    if running.get("HASH_VAL", "Match") != "Match":
        yield finding("config", file, "slurmctld runs with this file", "it has read another one")
    wanted = {key: value for line in conf for key, value in line.items()}
    level = _level(wanted.get("slurmctlddebug", "info"))
    if _level(running.get("SlurmctldDebug", level)) != level:
        yield finding("config", "SlurmctldDebug", level, _level(running["SlurmctldDebug"]))
    flags, present = (_words(text) for text in (wanted.get("debugflags", ""), running.get("DebugFlags", "")))
    if flags != present:
        yield finding("config", "DebugFlags", ",".join(sorted(flags)) or "none", ",".join(sorted(present)) or "none")


def _level(text: str) -> str:
    return _LEVELS[int(text)] if text.isdigit() and int(text) < len(_LEVELS) else text.lower()


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in text.split(",") if word not in ("", "(null)"))


def of_nodes(conf: Lines, shown: str, expanded: Callable[[str], Iterable[str]]) -> Iterator[Finding]:
    """Nodes that the file does not have, or has otherwise, and those that an administrator has drained.

    Args:
        expanded: the names of a hostlist.
    """
    desired = {
        name: line
        for line in conf
        if line.get("nodename", "DEFAULT").upper() != "DEFAULT"
        for name in expanded(line["nodename"])
    }
    for line in slurm_nodes.lines(shown):
        node = slurm_nodes.parse_line(line)
        wanted = desired.get(node.name)
        if wanted is None:
            yield finding("node", node.name, "not in slurm.conf", "a node of Slurm")
            continue
        for key, field, default in (
            ("feature", "AvailableFeatures", ""),
            ("weight", "Weight", "1"),
            ("gres", "Gres", ""),
        ):
            value = re.search(rf" {field}=(\S+)", line)
            have = (value.group(1) if value else "").replace("(null)", "")
            want = wanted.get(key, wanted.get("features", default) if key == "feature" else default)
            if _gres(have) != _gres(want):
                yield finding("node", f"{node.name} {field}", want or "none", have or "none")
        if "DRAIN" in node.flags and not node.flags & slurm_nodes.POWER and _by_hand(node):
            yield finding("node", node.name, "in service", f"drained by {node.reason_user or 'hand'}")


def _by_hand(node: slurm_nodes.NodeLine) -> bool:
    """Whether an administrator has drained a node."""
    theirs = not node.reason or reasons.from_administrator(node.reason, node.reason_user)
    return theirs and not reasons.drained_by_checks(node.reason)


def _gres(text: str) -> frozenset[str]:
    """The parts of a list; the sockets of a GRES are slurmctld's addition."""
    return frozenset(re.sub(r"\(.*?\)", "", each) for each in re.split(r",(?![^(]*\))", text) if each)


def of_partitions(conf: Lines, shown: str) -> Iterator[Finding]:
    """Partitions that the file does not have, or has otherwise."""
    desired = {
        line["partitionname"]: line for line in conf if line.get("partitionname", "DEFAULT").upper() != "DEFAULT"
    }
    running = {name: dict(_fields(rest)) for name, rest in re.findall(r"^PartitionName=(\S+)(.*)$", shown, re.M)}
    for name in sorted({*desired, *running}):
        if name not in running:
            yield finding("partition", name, "in slurm.conf", "no partition")
        elif name not in desired:
            yield finding("partition", name, "not in slurm.conf", "a partition of Slurm")
        else:
            yield from _of_partition(name, desired[name], running[name])


def _fields(text: str) -> Iterator[tuple[str, str]]:
    return iter((key.lower(), value) for key, value in re.findall(r" (\w+)=(\S*)", text))


def _of_partition(name: str, wanted: Mapping[str, str], have: Mapping[str, str]) -> Iterator[Finding]:
    # What an administrator changes, with Slurm's default. Other keys are compared where the file has them.
    defaults = {"state": "UP", "maxtime": "UNLIMITED", "defaulttime": "NONE", "maxnodes": "UNLIMITED"}
    more = ("default", "priorityjobfactor", "prioritytier", "hidden", "rootonly")
    lists = {"allowaccounts": "ALL", "allowgroups": "ALL", "allowqos": "ALL"}
    keys = {**defaults, **lists, **{key: wanted[key] for key in more if key in wanted}}
    for key, default in keys.items():
        if key not in have:
            continue
        want = wanted.get(key, default)
        if key == "state" and want.upper() == "CLOUD":
            continue
        if key == "defaulttime" and key not in wanted and have[key] == wanted.get("maxtime", "NONE"):
            continue
        if _comparable(want) != _comparable(have[key]):
            yield finding("partition", f"{name} {key}", want, have[key])


def _comparable(text: str) -> str:
    """Times in minutes, lists sorted, other words in lower case."""
    word = text.strip().lower()
    if word in _UNLIMITED:
        return "unlimited"
    if word.isdigit():
        return word
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", word)
    if match:
        days, hours, minutes, _seconds = (int(each or 0) for each in match.groups())
        return str(days * _DAY + hours * _HOUR + minutes)
    return ",".join(sorted(word.split(",")))


def of_reservations(shown: str) -> Iterator[Finding]:
    """Reservations that gpucluster has not made."""
    for name, users in re.findall(r"^ReservationName=(\S+).*? Users=(\S*)", shown, re.MULTILINE):
        if not name.startswith(OWN_RESERVATION):
            yield finding("reservation", name, "no reservation", f"one by hand, for {users.replace('(null)', 'all')}")
