"""What the last complete apply left on a host, and whether the host is still like that.

`gpucluster apply` need not ask each task again where nothing has changed: neither what the run works from (the
inventory, the roles, the programs: one digest, the `inputs`) nor what it made. The second is compared on the host
(`gpucluster_unchanged`, which a later run sends along):
every file below `TREES` by content, owner and mode, the other files that tasks wrote, the packages, the units that
tasks started, the mounts of fstab, the boot, and the host's facts. Files that no task wrote are compared, too: a change
of such a file only means that all tasks run.

`gpucluster drift` compares less of the same record (`gpucluster.node_agent.drift.recorded`): what nothing of the
cluster changes at run time. For it alone the record has the versions of packages.

While a run works, its tasks note in `JOURNAL` what they left (`note`), and which of their commands a later run repeats
all the same (`gpucluster_updates`). At its end `record` compares that with the disk:
a file that was edited in between must not become the expected state. The record is removed as soon as a run begins to
change the host.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.gpucluster_units import UP, UnitFailed

RECORD = Path("/var/lib/gpucluster/applied.json")
JOURNAL = Path("/run/gpucluster-applied")
FORMAT = 2
#: What a later look asks of the host's facts (`gpucluster_host_facts.collected`), and the names of permanent hosts.
ASKED = ("user", "key", "agent", "packages", "purposes", "rdma", "hosts")
# What is renewed before it ends (certificates: 60 days before) is renewed by tasks.
MAX_AGE = 7 * 24 * 3600
TREES = ("/etc", "/usr/local")
# Python packages, programs and release files: by size and time of change, and no deeper than tasks look. Below the name
# of its set of wheels the autoscaler's environment has 22,000 files.
LARGE_TREES = ("/opt/gpucluster", "/opt/cni", "/var/lib/gpucluster-software", "/var/lib/gpucluster-slurm")
LARGE_DEPTH = 2
# Of the controller: with which entries of the directory hosts bind. Those of elastic nodes come and go.
HOST_ENTRIES = "/var/lib/gpucluster-directory/hosts.json"
# They change with the clock, or by each start of a container.
VOLATILE = frozenset({"/etc/.pwd.lock", "/etc/adjtime", "/etc/mtab", "/etc/resolv.conf"})
# Larger files are archives and programs: by size and time of change.
READ_WHOLE = 1 << 20
PACKAGES = ("/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/usr/lib/sysimage/rpm/rpmdb.sqlite")
BOOT = "/proc/sys/kernel/random/boot_id"
FSTAB, MOUNTS = "/etc/fstab", "/proc/self/mounts"
_SHOWN = 5


def state_of(path: str, *, whole: int = READ_WHOLE) -> str:
    """What is at a path, in one word: content, owner and mode.

    Args:
        whole: of larger files size and time of change stand for the content.
    """
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    kind, owner = stat.S_IFMT(state.st_mode), f"{stat.S_IMODE(state.st_mode):o}:{state.st_uid}:{state.st_gid}"
    if kind == stat.S_IFLNK:
        return f"link {os.readlink(path)}"
    if kind != stat.S_IFREG:
        return f"{kind:o} {owner}"
    if state.st_size > whole:
        return f"{owner} {state.st_size} {state.st_mtime_ns}"
    with open(path, "rb") as file:
        return f"{owner} {hashlib.blake2b(file.read(), digest_size=16).hexdigest()}"


def below(trees: Iterable[str], depth: float = math.inf) -> Iterator[str]:
    """All paths below some folders; file systems that are mounted there are not entered.

    Args:
        depth: how many levels are read.
    """
    for tree in trees:
        pending = [(tree, 1)]
        while pending:
            folder, level = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.path in VOLATILE or entry.name == "__pycache__":
                    continue
                yield entry.path
                if level < depth and entry.is_dir(follow_symlinks=False) and not os.path.ismount(entry.path):
                    pending.append((entry.path, level + 1))


def unit_states(properties: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """For each unit whether it is up, and whether it starts at the next boot.

    Args:
        properties: as systemd shows them, by unit.
    """
    found = {}
    for name, values in properties.items():
        active = values.get("ActiveState", "unknown")
        found[name] = f"{'up' if active in UP else active} {values.get('UnitFileState', '')}"
    return found


def fstab_mounts() -> dict[str, str]:
    """The file systems of fstab that are mounted, by mount point."""
    points = {fields[1] for fields in _table(FSTAB) if len(fields) > 1 and not fields[0].startswith("#")}
    return {fields[1]: f"{fields[0]} {fields[2]}" for fields in _table(MOUNTS) if fields[1] in points}


def host_entries(hosts: Iterable[str]) -> str:
    """What the file of host entries has of these hosts, in one word: another password has to come to its host."""
    try:
        known = json.loads(Path(HOST_ENTRIES).read_text(encoding="utf-8"))["hosts"]
        kept = json.dumps({name: known.get(name) for name in hosts}, sort_keys=True)
    except FileNotFoundError:
        return "absent"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "damaged"
    return hashlib.blake2b(kept.encode(), digest_size=16).hexdigest()


def _table(path: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError:
        return []


@dataclass(frozen=True)
class Host:
    """What is compared of a host besides its files.

    Args:
        facts: of the host.
        permanent: the names of the cluster's permanent hosts.
        show: the properties of units, as systemd shows them.
        packages: the names of those that every host of this kind has.
    """

    facts: Mapping[str, Any]
    permanent: Iterable[str]
    show: Callable[[list[str]], Mapping[str, Mapping[str, str]]]
    packages: Iterable[str] = ()


def snapshot(noted: Mapping[str, Any], host: Host) -> dict[str, dict[str, Any]]:
    """All that is compared.

    Args:
        noted: the files and units of the tasks, as `note` keeps them.
    """
    files = {path: state_of(path, whole=0) for path in below(LARGE_TREES, LARGE_DEPTH)}
    # The files of tasks are compared whole, wherever they are.
    files.update({path: state_of(path) for path in {*below(TREES), *noted["files"], *PACKAGES}})
    files[HOST_ENTRIES] = host_entries(sorted(host.permanent))
    facts = {name: json.dumps(value, sort_keys=True) for name, value in host.facts.items()}
    return {
        "file": files,
        "unit": unit_states(host.show(sorted(noted["units"]))) if noted["units"] else {},
        "mount": fstab_mounts(),
        "fact": {**facts, "boot": _boot()},
    }


def _boot() -> str:
    return Path(BOOT).read_text(encoding="utf-8").strip()


def differences(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Some names of what is not as it was: they explain why all tasks run."""
    found = [
        f"{kind} {name}"
        for kind in sorted({*before, *now})
        for name in sorted({*before.get(kind, {}), *now.get(kind, {})})
        if before.get(kind, {}).get(name) != now.get(kind, {}).get(name)
    ]
    more = len(found) - _SHOWN
    return found[:_SHOWN] + ([f"{more} more"] if more > 0 else [])


@dataclass(frozen=True)
class Look:
    """What a host is since the last complete run.

    Args:
        reason: why its tasks have to run; empty if it is as that run left it.
        differing: some of what is not.
        updates: the commands that are repeated all the same.
    """

    reason: str
    differing: Sequence[str] = ()
    updates: Sequence[Mapping[str, Any]] = ()


def look(inputs: str, collect: Callable[[Mapping[str, Any]], Host]) -> Look:
    """Compare this host with what the last complete run left. It changes nothing.

    Args:
        inputs: what this run works from.
        collect: what the host is now; its argument has what ASKED names.
    """
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            return Look("another version of gpucluster")
        if record["inputs"] != inputs:
            return Look("other inputs")
        if not 0 <= time.time() - record["time"] < MAX_AGE:
            return Look("the last complete run was days ago")
        differing = differences(record["snapshot"], snapshot(record["noted"], collect(record["asked"])))
        return Look("the host has changed" if differing else "", differing, record["noted"]["updates"])
    except (OSError, ValueError, KeyError, TypeError, UnitFailed):
        return Look("no complete run is known")


def begin(inputs: str) -> None:
    """A run may change the host from now on."""
    RECORD.unlink(missing_ok=True)
    _write(JOURNAL, json.dumps({"inputs": inputs}) + "\n")


def note(
    files: Iterable[str] = (),
    units: Iterable[str] = (),
    packages: Iterable[str] = (),
    *,
    updates: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Note what a task has left: its files as they are now, the units and the packages that it was about, and the
    commands that a later run repeats.

    Nothing is noted outside of an apply.
    """
    try:
        journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return
    with os.fdopen(journal, "a", encoding="utf-8") as file:
        noted = {
            "files": {path: state_of(path) for path in files},
            "units": list(units),
            "packages": list(packages),
            "updates": list(updates),
        }
        file.write(json.dumps(noted) + "\n")


def record(inputs: str, asked: Mapping[str, Any], host: Host) -> list[str]:
    """Record what a complete run left. Returns what differs from what its tasks left; then nothing is recorded.

    Args:
        asked: what a later look needs for the facts of `host`: see ASKED.

    Raises:
        UnitFailed: systemd does not answer.
    """
    noted: dict[str, Any] = {"files": {}, "units": [], "updates": []}
    packages = set(host.packages)
    try:
        first, *lines = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return ["the journal of the run"]
    JOURNAL.unlink()
    if first != {"inputs": inputs}:
        return ["another run at the same time"]
    for line in lines:
        noted["files"].update(line["files"])
        for kind in ("units", "updates"):
            noted[kind] += [each for each in line[kind] if each not in noted[kind]]
        packages.update(line["packages"])
    seen = snapshot(noted, host)
    differing = differences({"file": noted["files"]}, {"file": {path: seen["file"][path] for path in noted["files"]}})
    if not differing:
        RECORD.parent.mkdir(mode=0o755, exist_ok=True)
        made = {"format": FORMAT, "inputs": inputs, "time": time.time(), "asked": asked, "noted": noted}
        _write(RECORD, json.dumps({**made, "snapshot": seen, "packages": package_versions(packages)}))
    return differing


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of these packages that are installed, and of Slurm's, ` held` behind those that are."""
    chosen = set(names)
    rows = _of_dpkg() if Path(PACKAGES[0]).is_file() else _of_rpm()
    return {name: version for name, version in rows if name in chosen or name.startswith("slurm")}


def _of_dpkg() -> Iterator[tuple[str, str]]:
    name, status = "", ""
    for line in Path(PACKAGES[0]).read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("Package: "):
            name, status = line[9:], ""
        elif line.startswith("Status: "):
            status = line[8:]
        elif line.startswith("Version: ") and status.endswith(" installed"):
            yield name, line[9:] + (" held" if status.startswith("hold ") else "")


def _of_rpm() -> Iterator[tuple[str, str]]:
    query = ["rpm", "--query", "--all", "--queryformat", r"%{NAME} %{VERSION}-%{RELEASE}\n"]
    for line in subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines():
        name, _, version = line.partition(" ")
        yield name, version


def _write(path: Path, text: str) -> None:
    """In one piece, for root alone."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
