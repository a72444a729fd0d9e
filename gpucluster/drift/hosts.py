"""What hosts and the controller have answered (`gpucluster.node_agent.drift.asked`), as findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpucluster.drift.model import APPLY, Area, DriftFinding, Unseen
from gpucluster.node_agent.drift.recorded import UNMANAGED
from gpucluster.verdict.measurements import UNREACHABLE

_SLURMCTLD = "slurmctld"
_SERVICES = {Area.SLURM: _SLURMCTLD, Area.DIRECTORY: "directory", Area.ACCOUNTS: "accounting"}
_LONGEST = 300

Answers = Mapping[str, Mapping[str, Any]]


def read(answers: Answers) -> Iterator[DriftFinding | Unseen]:
    """The findings of hosts, and those of the controller about Slurm and the directory."""
    for host, answer in answers.items():
        if UNREACHABLE in answer:
            yield Unseen(Area.HOSTS, host, f"it can't be reached: {str(answer[UNREACHABLE])[:_LONGEST]}")
            continue
        yield from _area(Area.HOSTS, host, answer.get("host"), str(answer.get("host_error", "")))
        if "cluster" not in answer:
            continue
        cluster = answer["cluster"]
        if not isinstance(cluster, Mapping):
            yield Unseen(Area.SLURM, "controller", str(answer.get("cluster_error", ""))[:_LONGEST] or "no answer")
            continue
        for area, service in _SERVICES.items():
            if area in cluster:
                yield from _area(area, service, cluster[area], "")


def _area(area: Area, where: str, found: Any, error: str) -> Iterator[DriftFinding | Unseen]:
    problem = error or (str(found.get("error", "")) if isinstance(found, Mapping) else "its answer can't be read")
    if problem:
        yield Unseen(area, where, problem[:_LONGEST])
        return
    for each in found.get("findings", ()):
        kind, name, expected, seen = (str(each.get(key, ""))[:_LONGEST] for key in ("kind", "name", "expected", "seen"))
        yield DriftFinding(area, kind, where, name, expected, seen, _fix(kind, name, seen))


_RECONFIGURE = "gpucluster ssh -- sudo scontrol reconfigure"
_ON_SLURM = f"write it into cluster.yml, or: {_RECONFIGURE}"
#: By kind, what puts it right; `{name}` is the first word of the name.
_FIXES = {
    "config": _RECONFIGURE,
    "node": _ON_SLURM,
    "partition": _ON_SLURM,
    UNMANAGED: f"undo it by hand: {APPLY} takes it as known",
    "reservation": "when it is over: gpucluster ssh -- sudo scontrol delete reservation={name}",
}


def _fix(kind: str, name: str, seen: str) -> str:
    """What puts it right."""
    first = name.partition(" ")[0]
    if kind == "node" and seen.startswith("drained"):
        return f"gpucluster ssh -- sudo scontrol update nodename={first} state=resume"
    if kind == "entry":
        return _fix_of_entry(name, seen)
    if kind == "association":
        return _fix_of_association(name, seen)
    return _FIXES.get(kind, APPLY).format(name=first)


def _fix_of_association(name: str, seen: str) -> str:
    if seen == "none":
        return f"gpucluster user edit {name} --slurm-account ACCOUNT"
    return f"gpucluster ssh -- sudo sacctmgr --immediate delete user {name}"


def _fix_of_entry(name: str, seen: str) -> str:
    kind, _, entry = name.partition(" ")
    member = re.match(r"member (\S+) (added|removed)", seen)
    if member:
        verb = {"added": "remove-member", "removed": "add-member"}[member.group(2)]
        return f"{APPLY}, if cluster.yml has it; else: gpucluster group {verb} {entry} {member.group(1)}"
    if seen.startswith("added"):
        return f"write it into cluster.yml, or: gpucluster {kind} remove {entry}"
    return f"{APPLY}, if cluster.yml has it; else: gpucluster {kind} {'edit' if kind == 'user' else 'add'} {entry}"
