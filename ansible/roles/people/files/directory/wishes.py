"""What somebody asks for, checked as far as that is possible without looking at the directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from directory import keys, names
from directory.errors import Refused
from directory.names import Surroundings


@dataclass(frozen=True)
class Wish:
    """What one person shall be. None: not said.

    Args:
        group: the primary group, by name or number.
        groups: all others; `add_groups` and `remove_groups` say less.
        ssh_keys: all of them; `add_ssh_keys` says less.
    """

    name: str
    full_name: str | None = None
    uid: int | None = None
    group: str | int | None = None
    groups: tuple[str, ...] | None = None
    add_groups: tuple[str, ...] = ()
    remove_groups: tuple[str, ...] = ()
    ssh_keys: tuple[str, ...] | None = None
    add_ssh_keys: tuple[str, ...] = ()
    password: str | None = None
    shell: str | None = None
    slurm_account: str | None = None


ADD = frozenset(
    {"name", "full_name", "uid", "gid", "group", "groups", "ssh_keys", "password", "shell", "slurm_account"}
)
#: Not by a file: it would lie there.
IMPORT = ADD - {"password"}
EDIT = (ADD - {"uid"}) | {"add_groups", "remove_groups", "add_ssh_keys"}


def arguments(given: Any, allowed: frozenset[str], required: frozenset[str] = frozenset()) -> Mapping[str, Any]:
    """The arguments of an operation; those that are null count as not given.

    Raises:
        Refused: they are no object, one is unknown, or one is missing.
    """
    if not isinstance(given, dict):
        raise Refused("the arguments are no object", 'Write {"name": ...}')
    unknown = sorted(str(key) for key in given if key not in allowed)
    if "password" in unknown:
        raise Refused("a password must not lie in a file", "Give one later: cluster user edit NAME --password-stdin")
    if unknown:
        raise Refused(f"there is no argument {names.shown(unknown[0])}", f"There are: {', '.join(sorted(allowed))}")
    said = {key: value for key, value in given.items() if value is not None}
    missing = sorted(required - set(said))
    if missing:
        raise Refused(f"{missing[0]} is missing", f"Give {', '.join(missing)}")
    return said


def wish(given: Any, here: Surroundings, allowed: frozenset[str] = ADD) -> Wish:
    """What somebody asks for one person.

    Raises:
        Refused: it can't be had on any directory.
    """
    said = arguments(given, allowed, frozenset({"name"}))
    name = names.user_name(said["name"], here)
    try:
        return Wish(
            name=name,
            full_name=names.full_name(said["full_name"]) if "full_name" in said else None,
            uid=_free_uid(said["uid"], here) if "uid" in said else None,
            group=_group(said),
            groups=_group_names(said["groups"]) if "groups" in said else None,
            add_groups=_group_names(said.get("add_groups", [])),
            remove_groups=_group_names(said.get("remove_groups", [])),
            ssh_keys=keys.ssh_keys(said["ssh_keys"]) if "ssh_keys" in said else None,
            add_ssh_keys=keys.ssh_keys(said.get("add_ssh_keys", [])),
            password=names.password(said["password"]) if "password" in said else None,
            shell=names.shell(said["shell"], here) if "shell" in said else None,
            slurm_account=names.slurm_account(said["slurm_account"]) if "slurm_account" in said else None,
        )
    except Refused as refused:
        raise Refused(f"{name}: {refused.message}", refused.hint) from refused


def wishes(given: Any, here: Surroundings) -> list[Wish]:
    """All of a list, each name and each uid once.

    Raises:
        Refused: one of them can't be had.
    """
    if not isinstance(given, list):
        raise Refused("the users come as a list", 'Write [{"name": ...}, ...]')
    found, together = [wish(one, here) for one in given], Together()
    for one in found:
        together.add(one)
    return found


class Together:
    """Wishes of one request, which can't all be had if two of them want the same."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._uids: dict[int, str] = {}

    def add(self, one: Wish) -> None:
        """One more.

        Raises:
            Refused: another one is for the same person or the same uid.
        """
        if one.name in self._names:
            raise Refused(f"{one.name} is mentioned twice", "Each may stand once")
        if one.uid is not None:
            other = self._uids.setdefault(one.uid, one.name)
            if other != one.name:
                raise Refused(f"uid {one.uid} is asked for by {other} and by {one.name}", "Each may stand once")
        self._names.add(one.name)


def _free_uid(value: Any, here: Surroundings) -> int:
    uid = names.number(value, "uid")
    holder = next((name for name, number in here.users.items() if number == uid), None)
    if holder:
        raise Refused(f"uid {uid} belongs to {holder}, an account of this host", "Choose another, or leave it out")
    return uid


def _group(said: Mapping[str, Any]) -> str | int | None:
    if "gid" in said and "group" in said:
        raise Refused("gid and group are both given", "Give one of them")
    if "gid" in said:
        return names.number(said["gid"], "gid")
    return names.known_name(said["group"], "group") if "group" in said else None


def _group_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Refused("groups come as a list of names", 'Write ["name", ...]')
    return tuple(dict.fromkeys(names.known_name(name, "group") for name in value))
