"""The directory's entries in a backup, and how they become entries of the present cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from gpucluster.controller.users.config import Config
from gpucluster.controller.users.ldif import parse
from gpucluster.controller.users.state import DirectoryState, counter_dn, retired_dn
from gpucluster.node_agent.errors import Refused


@dataclass(frozen=True)
class IdMemory:
    """What the present directory knows and a backup does not, so that no id is given twice after a restore.

    Args:
        counters: entry (DN) -> the next id.
        users: name -> uid of users who are not in the backup, or were removed.
        groups: name -> gid, likewise.
        returned: users who can't log in now and can after the restore.
        dropped: users who exist now and not after the restore.
    """

    counters: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    returned: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def remember(here: Config, now: DirectoryState, then: DirectoryState) -> IdMemory:
    """What a restore has to carry over.

    Args:
        now: the present directory.
        then: the directory of the backup.
    """
    gone = {name for name, user in now.users.items() if not user.enabled} | set(now.retired_users)
    uids = {**{name: user.uid for name, user in now.users.items()}, **now.retired_users}
    gids = {**{name: group.gid for name, group in now.groups.items()}, **now.retired_groups}
    known_uids = {**{name: user.uid for name, user in then.users.items()}, **then.retired_users}
    known_gids = {**{name: group.gid for name, group in then.groups.items()}, **then.retired_groups}
    next_uid, next_gid = max(now.next_uid, then.next_uid), max(now.next_gid, then.next_gid)
    return IdMemory(
        {counter_dn(here, "uid"): next_uid, counter_dn(here, "gid"): next_gid},
        _missing(uids, known_uids),
        _missing(gids, known_gids),
        tuple(sorted(name for name, user in then.users.items() if user.enabled and name in gone)),
        tuple(sorted(set(now.users) - set(then.users))),
    )


def _missing(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    """Names with their ids that the backup does not have. For a name or id of the backup, the backup counts."""
    return {name: number for name, number in now.items() if name not in then and number not in then.values()}


def read_state(file: Path, here: Config, suffix: str) -> DirectoryState:
    """The directory in an LDIF file.

    Raises:
        Refused: it is not a directory of gpucluster.
    """
    try:
        return DirectoryState.read(replace(here, suffix=suffix), parse(file.read_text(encoding="utf-8")))
    except (KeyError, IndexError, ValueError) as error:
        raise Refused(f"the backup's directory can't be read: {error}", "Choose another file") from error


def adopt(source: Path, target: Path, suffix: str, here: Config, memory: IdMemory) -> None:
    """Write a backup's entries as entries of this cluster.

    The entries with which hosts bind are left out: they are created again, with the passwords of this cluster's hosts.

    Args:
        suffix: the suffix of the backup.
    """
    old, new = replace(here, suffix=suffix).name, here.name
    with source.open(encoding="utf-8") as stream, target.open("w", encoding="utf-8") as out:
        for record in records(stream):
            lines = [moved(line, suffix, here.suffix) for line in record] if suffix != here.suffix else record
            dn = lines[0].partition(": ")[2]
            if dn == here.suffix:
                lines = [f"dc: {new}" if line == f"dc: {old}" else line for line in lines]
            if dn in memory.counters:
                counter = f"description: {memory.counters[dn]}"
                lines = [counter if line.startswith("description: ") else line for line in lines]
            if not dn.endswith(f",{here.hosts_dn}"):
                out.write("\n".join(lines) + "\n\n")
        for kind, numbers in (("people", memory.users), ("groups", memory.groups)):
            for name, number in numbers.items():
                out.write(f"dn: cn={name},{retired_dn(here, kind)}\nobjectClass: device\n")
                out.write(f"cn: {name}\nserialNumber: {number}\n\n")


def records(stream: IO[str]) -> Iterator[list[str]]:
    """The records of an LDIF without wrapped lines."""
    lines: list[str] = []
    for line in stream:
        if line.strip():
            lines.append(line.rstrip("\n"))
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines


def moved(line: str, old: str, new: str) -> str:
    """The line with the new suffix, if its value is the name of an entry."""
    named = line.startswith(("dn: ", "creatorsName: ", "modifiersName: "))
    return line[: -len(old)] + new if named and line.endswith(old) else line


def count_entries(ldif: Path, suffix: str) -> dict[str, int]:
    """How many users (`people`) and groups there are."""
    counts = {"people": 0, "groups": 0}
    with ldif.open(encoding="utf-8") as stream:
        for lines in records(stream):
            for what in counts:
                if lines[0].endswith(f",ou={what},{suffix}"):
                    counts[what] += 1
    return counts
