"""The desired state of users, as a request gives it, checked as far as possible without reading the directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.controller.rules import ssh_keys
from gpucluster.controller.users import values
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent.errors import Refused


@dataclass(frozen=True)
class DesiredUser:
    """The desired state of one user. None: not given.

    Args:
        group: the primary group, by name or gid.
        groups: all other groups; `add_groups` and `remove_groups` change single ones.
        ssh_keys: all keys; `add_ssh_keys` adds to the existing ones.
        generated_key: the one of `ssh_keys` that gpucluster has generated for the user. A machine that does not have
            the key of the directory has generated another one: that of the directory, with the same label, stays.
        replace_generated_key: takes the place of the keys with its label.
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
    generated_key: str | None = None
    replace_generated_key: str | None = None
    password: str | None = None
    shell: str | None = None
    slurm_account: str | None = None

    @property
    def changes_rights(self) -> bool:
        """Whether it may take a key away, or change groups: hosts have to confirm that."""
        changes = (self.group, self.groups, self.ssh_keys)
        return any(value is not None for value in changes) or bool(self.add_groups or self.remove_groups)


ADD = frozenset(
    {"name", "full_name", "uid", "gid", "group", "groups", "ssh_keys", "password", "shell", "slurm_account"}
)
#: A password is never read from a file: it would stay there.
IMPORT = ADD - {"password"}
EDIT = (ADD - {"uid"}) | {"add_groups", "remove_groups", "add_ssh_keys", "replace_generated_key"}
CONVERGE = ADD | {"generated_key"}


def arguments(request: Any, allowed: frozenset[str], required: frozenset[str] = frozenset()) -> Mapping[str, Any]:
    """The arguments of an operation; those that are null count as missing.

    Raises:
        Refused: they are not an object, one is unknown, or one is missing.
    """
    if not isinstance(request, dict):
        raise Refused("the arguments are not an object", 'Write {"name": ...}')
    unknown = sorted(str(key) for key in request if key not in allowed)
    if "password" in unknown:
        raise Refused("a password must not be in a file", "Give one later: cluster user edit NAME --password-stdin")
    if unknown:
        raise Refused(
            f"there is no argument {values.shown(unknown[0])}", f"The arguments are: {', '.join(sorted(allowed))}"
        )
    present = {key: value for key, value in request.items() if value is not None}
    missing = sorted(required - set(present))
    if missing:
        raise Refused(f"{missing[0]} is missing", f"Give {', '.join(missing)}")
    return present


def desired_user(request: Any, local: LocalAccounts, allowed: frozenset[str] = ADD) -> DesiredUser:
    """What a request asks for one user.

    Raises:
        Refused: no directory could have such a user.
    """
    present = arguments(request, allowed, frozenset({"name"}))
    name = values.user_name(present["name"], local)
    try:
        return DesiredUser(
            name=name,
            full_name=values.full_name(present["full_name"]) if "full_name" in present else None,
            uid=_free_uid(present["uid"], local) if "uid" in present else None,
            group=_group(present),
            groups=_group_names(present["groups"]) if "groups" in present else None,
            add_groups=_group_names(present.get("add_groups", [])),
            remove_groups=_group_names(present.get("remove_groups", [])),
            ssh_keys=values.public_keys(present["ssh_keys"]) if "ssh_keys" in present else None,
            add_ssh_keys=values.public_keys(present.get("add_ssh_keys", [])),
            generated_key=_generated_key(present, "generated_key"),
            replace_generated_key=_generated_key(present, "replace_generated_key"),
            password=values.password(present["password"]) if "password" in present else None,
            shell=values.shell(present["shell"], local) if "shell" in present else None,
            slurm_account=values.slurm_account(present["slurm_account"]) if "slurm_account" in present else None,
        )
    except Refused as refused:
        raise Refused(f"{name}: {refused.message}", refused.hint) from refused


def desired_users(request: Any, local: LocalAccounts) -> list[DesiredUser]:
    """Every user of a list that describes all of them, each name and each uid once.

    Raises:
        Refused: one of them is not possible.
    """
    if not isinstance(request, list):
        raise Refused("the users must be a list", 'Write [{"name": ...}, ...]')
    users, seen = [desired_user(user, local, CONVERGE) for user in request], UniqueUsers()
    for user in users:
        seen.add(user)
    return users


class UniqueUsers:
    """The users of one request so far: two of them can't have the same name or uid."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._uids: dict[int, str] = {}

    def add(self, user: DesiredUser) -> None:
        """Add a user.

        Raises:
            Refused: another user has the same name or the same uid.
        """
        if user.name in self._names:
            raise Refused(f"{user.name} is mentioned twice", "Each name may occur once")
        if user.uid is not None:
            other = self._uids.setdefault(user.uid, user.name)
            if other != user.name:
                raise Refused(f"uid {user.uid} is requested for {other} and for {user.name}", "Each uid may occur once")
        self._names.add(user.name)


def _free_uid(value: Any, local: LocalAccounts) -> int:
    uid = values.number(value, "uid")
    holder = next((name for name, number in local.users.items() if number == uid), None)
    if holder:
        raise Refused(f"uid {uid} belongs to {holder}, an account of this host", "Choose another, or leave it out")
    return uid


def _generated_key(present: Mapping[str, Any], argument: str) -> str | None:
    if argument not in present:
        return None
    (key,) = values.public_keys([present[argument]])
    if not ssh_keys.label(key):
        raise Refused("the generated key does not name its owner", "Its comment begins with USER@CLUSTER")
    return key


def _group(present: Mapping[str, Any]) -> str | int | None:
    if "gid" in present and "group" in present:
        raise Refused("gid and group are both given", "Give one of them")
    if "gid" in present:
        return values.number(present["gid"], "gid")
    return values.known_name(present["group"], "group") if "group" in present else None


def _group_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Refused("groups must be a list of names", 'Write ["name", ...]')
    return tuple(dict.fromkeys(values.known_name(name, "group") for name in value))
