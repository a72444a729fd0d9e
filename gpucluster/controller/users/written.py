"""What the program `cluster` has written into the directory: it tells entries that other programs made or changed.

Every change of `cluster` is recorded here, under its lock, by entry and attribute; of a value only a digest. Passwords
are left out: their users change them. Without a record, as after the restore of a backup, the next change of
`cluster` records the whole directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from gpucluster.controller.users.desired import DesiredUser
from gpucluster.controller.users.state import DirectoryState
from gpucluster.node_agent.drift.recorded import Finding, finding
from gpucluster.node_agent.passwords import write_file

#: By `user NAME` or `group NAME`, the digest of each attribute.
Written = Mapping[str, Mapping[str, str]]


def described(state: DirectoryState) -> dict[str, dict[str, str]]:
    """What is compared of the directory. Each key and each member is a part of its own."""
    entries = {}
    for user in state.users.values():
        entries[f"user {user.name}"] = {
            "uid": str(user.uid),
            "gid": str(user.gid),
            "full name": user.full_name,
            "home": user.home,
            "shell": user.shell,
            "enabled": str(user.enabled),
            **{f"ssh key {_digest(key)}": "" for key in user.ssh_keys},
        }
    for group in state.groups.values():
        entries[f"group {group.name}"] = {"gid": str(group.gid), **{f"member {name}": "" for name in group.members}}
    return {name: {key: _digest(value) for key, value in entry.items()} for name, entry in entries.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read(file: Path) -> dict[str, dict[str, str]] | None:
    """The record; None if there is none that can be read."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["entries"]
        return {str(name): {str(key): str(value) for key, value in entry.items()} for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def asked_for(users: Iterable[DesiredUser], state: DirectoryState) -> set[tuple[str, str]]:
    """What is as it was asked for, whatever made it: entries, and the beginnings of the names of their parts."""
    parts = set()
    for user in users:
        entry = f"user {user.name}"
        parts.add((entry, ""))
        given = {"full name": user.full_name, "shell": user.shell, "ssh key": user.ssh_keys, "uid": user.uid}
        parts |= {(entry, part) for part, value in given.items() if value is not None}
        if user.group is not None:
            parts.add((entry, "gid"))
        if user.groups is not None:
            parts |= {(f"group {group}", f"member {user.name}") for group in state.groups}
    return parts


def record(file: Path, before: Written, after: Written, confirmed: Collection[tuple[str, str]] = ()) -> None:
    """Record a change. What it does not touch stays as it was recorded: it may have been made by hand.

    Args:
        before: the directory as it was read for the change. `after`: as it is now.
        confirmed: of `asked_for`.

    Raises:
        Failed: it can't be written.
    """
    present = read(file)
    known = {name: dict(entry) for name, entry in (after if present is None else present).items()}
    for name in {*before, *after}:
        old, new = before.get(name, {}), after.get(name)
        if new is None:
            known.pop(name, None)
        elif old != new:
            changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
            _merge(known.setdefault(name, {}), new, changed)
    for name, part in sorted(confirmed):
        if name in after and not part:
            known.setdefault(name, dict(after[name]))
        elif name in after and name in known:
            of_part = {key for key in {*after[name], *known[name]} if key.startswith(part)}
            _merge(known[name], after[name], of_part)
    if known != present:
        write_file(file, json.dumps({"entries": known}, sort_keys=True))


def _merge(entry: dict[str, str], new: Mapping[str, str], keys: Iterable[str]) -> None:
    """Give an entry these parts of a new state."""
    for key in keys:
        entry.pop(key, None)
    entry.update({key: new[key] for key in keys if key in new})


def forget(file: Path) -> None:
    """The directory is another one now."""
    file.unlink(missing_ok=True)


def differences(known: Written, now: Written) -> Iterator[Finding]:
    """What other programs have changed."""
    for name in sorted({*known, *now}):
        if name not in now:
            yield finding("entry", name, "in the directory", "removed, and not by `cluster`")
        elif name not in known:
            yield finding("entry", name, "not in the directory", "added, and not by `cluster`")
        else:
            old, new = known[name], now[name]
            words = [f"{key} added" for key in sorted(set(new) - set(old))]
            words += [f"{key} removed" for key in sorted(set(old) - set(new))]
            words += [f"{key} changed" for key in sorted(set(old) & set(new)) if old[key] != new[key]]
            if words:
                yield finding("entry", name, "as `cluster` wrote it", ", ".join(words))
