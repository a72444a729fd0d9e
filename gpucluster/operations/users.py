"""Users and groups of the cluster's directory: each change is one call of a program on the controller.

That program validates every request and holds a lock of its own: nothing here takes the cluster's lock. Requests are on
standard input, so no name and no secret is ever part of a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

from gpucluster.errors import InputError, PartlyDone
from gpucluster.events import Sink, warn
from gpucluster.operations import users_file
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.directory_records import (
    Group,
    GroupChange,
    GroupRemoval,
    ImportReport,
    ImportStatus,
    NewUser,
    Removal,
    User,
    UserChange,
    UserEdit,
)
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.spec import ClusterSpec

_PROGRAM = RemoteProgram(
    "sudo -n /usr/local/bin/cluster request",
    absent="the controller has no program for its users yet",
    silent=("the controller's directory gives no answer", "See its state: gpucluster ssh -- systemctl status slapd"),
    # Its texts name the commands as they are typed on the controller.
    own_commands=(
        (r"\bcluster (user|group)\b", r"gpucluster \1"),
        (r"\bsudo sacctmgr\b", "gpucluster ssh -- sudo sacctmgr"),
    ),
)
# Seconds for reading. A change has no limit: it may wait for jobs to end or archive a home. ssh itself gives up on a
# controller that is gone.
_TIMEOUT = 60.0
# Operations that change nothing.
_READS = frozenset({"user.list", "user.show", "group.list", "converge.preview"})
_USES_FILE = "uses what is written there. Change it there as well"
_ADDS_AGAIN = "adds them again. Remove them there as well"

T = TypeVar("T")


@dataclass(frozen=True)
class _SingleUser:
    user: User


@dataclass(frozen=True)
class _UserList:
    users: tuple[User, ...]


@dataclass(frozen=True)
class _GroupList:
    groups: tuple[Group, ...]


def require_directory(spec: ClusterSpec, hint: str) -> None:
    """Check that a cluster has a directory of its own.

    Raises:
        InputError: it has none, or uses one that exists.
    """
    directory = spec.users.directory
    if directory is not None:
        message = f"the users of this cluster are in a directory that exists, {directory.servers[0]}"
        way_out = "Members of users.directory.user_groups are its users: docs/how-to/existing-directory.md"
        raise InputError(message, where=str(spec.file), hint=way_out)
    if not spec.storage.home.enabled:
        message = "this cluster has no directory: its users are local users of each host"
        raise InputError(message, where=str(spec.file), hint=hint)


@dataclass(frozen=True)
class UserPreview:
    """The names of the groups and users that an apply would add, and of the users whom it would change."""

    groups: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]


class DirectoryClient:
    """Calls the directory's program on the controller."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection, on_event: Sink) -> None:
        self._spec = spec
        self._controller = controller
        self._on_event = on_event

    def call(
        self, kind: type[T], operation: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> T:
        """Run one operation and return its result.

        Args:
            kind: the type of the result.
            timeout: seconds; None waits for as long as it takes.

        Raises:
            InputError: it is refused, or this cluster has no directory.
            OtherClusterError: it changes something, and the cluster is not known to be the one of this folder.
            ToolError: it failed, or there is no answer.
        """
        require_directory(self._spec, "Write them under users.people, then run: gpucluster apply")
        if operation not in _READS:
            self._controller.require_own()
        return _PROGRAM.call(
            lambda command: self._controller.ssh_argv(None, command),
            kind,
            operation,
            arguments or {},
            timeout=timeout,
            relocate=self._controller.relocate,
        )

    def preview(self, people: Sequence[Mapping[str, Any]], *, timeout: float = _TIMEOUT) -> UserPreview:
        """What apply would change in the directory. Reads only.

        Args:
            people: the users of cluster.yml, as the inventory has them. Keys that are left out stay as they are.

        Raises:
            InputError: one of them is not possible: apply would be refused.
            ToolError: there is no answer.
        """
        return self.call(UserPreview, "converge.preview", {"people": list(people)}, timeout=timeout)

    def warn_if_in_file(self, names: Iterable[str], what_apply_does: str) -> None:
        """Warn about each of these users that cluster.yml names, too: the next apply uses the file."""
        in_file = {person.name for person in self._spec.users.people}
        both = [name for name in names if name in in_file]
        if both:
            verb = "is" if len(both) == 1 else "are"
            message = f"{', '.join(both)} {verb} in {self._spec.file}, too: the next apply {what_apply_does}"
            warn(self._on_event, "cluster", message)


class Users:
    """The users of a cluster.

    Each method raises InputError if the controller refuses, PartlyDone (a ToolError) if a part of it failed,
    UnconfirmedError (a PartlyDone) if not every host has confirmed a change of groups or keys, a disabling or a
    removal, and else ToolError.
    """

    def __init__(self, directory: DirectoryClient) -> None:
        self._directory = directory

    def list(self) -> tuple[User, ...]:
        """All users."""
        return self._directory.call(_UserList, "user.list", timeout=_TIMEOUT).users

    def show(self, name: str) -> User:
        """One user."""
        return self._directory.call(_SingleUser, "user.show", {"name": name}, timeout=_TIMEOUT).user

    def add(self, name: str, **settings: Unpack[NewUser]) -> UserChange:
        """Add a user. Without further settings they have no privileges."""
        return self._directory.call(UserChange, "user.add", {"name": name, **_consistent(settings)})

    def edit(self, name: str, **settings: Unpack[UserEdit]) -> UserChange:
        """Change the given settings of a user."""

        def note(change: UserChange) -> None:
            # cluster.yml has no passwords: an apply leaves them alone.
            if change.changed and settings.keys() - {"password"}:
                self._directory.warn_if_in_file([name], _USES_FILE)

        return _noted(
            lambda: self._directory.call(UserChange, "user.edit", {"name": name, **_consistent(settings)}), note
        )

    def replace_generated_key(self, name: str, public: str) -> UserChange:
        """Put a new generated key in the place of the one that gpucluster generated before.

        Args:
            public: its comment begins with USER@CLUSTER, as that of the old one.
        """
        return self._directory.call(UserChange, "user.edit", {"name": name, "replace_generated_key": public})

    def disable(self, name: str) -> UserChange:
        """Refuse the user's logins from now on, and end their jobs and processes. All their data stays."""
        return self._directory.call(UserChange, "user.disable", {"name": name})

    def enable(self, name: str) -> UserChange:
        """Allow the user's logins again."""
        return self._directory.call(UserChange, "user.enable", {"name": name})

    def remove(self, name: str, *, home: Literal["keep", "archive"] = "keep") -> Removal:
        """Remove a user: directory entry, keys, association, jobs and processes. Their files stay.

        It can be repeated: a repetition does what failed before, or could not be done on every host.

        Args:
            home: "keep" leaves the home as it is, "archive" packs it into one file.
        """
        return _noted(
            lambda: self._directory.call(Removal, "user.remove", {"name": name, "home": home}),
            lambda _: self._directory.warn_if_in_file([name], _ADDS_AGAIN),
        )

    def import_file(self, file: Path) -> ImportReport:
        """Add all users of a file (see `users_file`), and change those that exist already. It can be repeated.

        Raises:
            InputError: the file is wrong; `findings` has every error. Nothing was changed.
        """
        people = users_file.read(file)

        def note(report: ImportReport) -> None:
            changed = [user.name for user in report.users if user.status is ImportStatus.CHANGED]
            self._directory.warn_if_in_file(changed, _USES_FILE)

        result = _noted(lambda: self._directory.call(ImportReport, "user.import", {"users": people}), note)
        # The reason of a failure is one text: what it is, and the command that helps.
        reasons = (_PROGRAM.as_typed_here(user.message) if user.message else None for user in result.users)
        users = tuple(replace(user, message=reason) for user, reason in zip(result.users, reasons, strict=True))
        return replace(result, users=users)


class Groups:
    """The groups of a cluster.

    Each method raises InputError if the controller refuses, UnconfirmedError (a ToolError) if not every host has
    confirmed that a member or a group came or went, and else ToolError.
    """

    def __init__(self, directory: DirectoryClient) -> None:
        self._directory = directory

    def list(self) -> tuple[Group, ...]:
        """All groups."""
        return self._directory.call(_GroupList, "group.list", timeout=_TIMEOUT).groups

    def add(self, name: str, *, gid: int | None = None) -> GroupChange:
        """Add a group.

        Args:
            gid: its id; None takes the next free one.
        """
        arguments = {"name": name} if gid is None else {"name": name, "gid": gid}
        return self._directory.call(GroupChange, "group.add", arguments)

    def remove(self, name: str) -> GroupRemoval:
        """Remove a group. Files keep its gid. It can be repeated: hosts are asked again."""
        return self._directory.call(GroupRemoval, "group.remove", {"name": name})

    def add_member(self, group: str, user: str) -> GroupChange:
        """Add a user to a group."""
        return self._change_member("group.add_member", group, user)

    def remove_member(self, group: str, user: str) -> GroupChange:
        """Remove a user from a group."""
        return self._change_member("group.remove_member", group, user)

    def _change_member(self, operation: str, group: str, user: str) -> GroupChange:
        def note(change: GroupChange) -> None:
            if change.changed:
                self._directory.warn_if_in_file([user], _USES_FILE)

        return _noted(lambda: self._directory.call(GroupChange, operation, {"group": group, "user": user}), note)


def _noted(change: Callable[[], T], note: Callable[[T], None]) -> T:
    """Make a change and note it, also where a part of it failed."""
    try:
        result = change()
    except PartlyDone as error:
        note(error.done)
        raise
    note(result)
    return result


def _consistent(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same settings. Raises InputError if two of them contradict each other."""
    for first, second in (
        ("gid", "group"),
        ("groups", "add_groups"),
        ("groups", "remove_groups"),
        ("ssh_keys", "add_ssh_keys"),
    ):
        if first in settings and second in settings:
            raise InputError(f"{first} and {second} can't be given together", hint="Give one of the two")
    return settings
