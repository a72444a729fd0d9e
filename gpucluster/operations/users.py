"""The cluster's directory of people, as an operator changes it: one question to the controller, one answer.

The program there decides what is possible, and holds a lock of its own: nothing here is a run of the cluster. What is
asked goes by standard input, so no name and no secret is ever part of a command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

from gpucluster.errors import InputError
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations import users_file
from gpucluster.operations.accounts import (
    Edit,
    Group,
    GroupChange,
    ImportReport,
    Removal,
    User,
    UserChange,
    Wish,
)
from gpucluster.operations.controller import Controller
from gpucluster.operations.rpc import Program
from gpucluster.spec import ClusterSpec

_PROGRAM = Program(
    "sudo -n /usr/local/bin/cluster request",
    absent="the controller has no program for its people yet",
    silent=("the controller's directory gives no answer", "Look there: gpucluster ssh -- systemctl status slapd"),
    # Its hints name the commands as they are typed there.
    own_commands=(r"\bcluster (user|group)\b", r"gpucluster \1"),
)
# Of a change that waits for jobs to end or packs a home, nobody knows how long it takes; ssh itself gives up on a
# controller that is gone.
_PATIENCE = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class _Person:
    user: User


@dataclass(frozen=True)
class _People:
    users: tuple[User, ...]


@dataclass(frozen=True)
class _AllGroups:
    groups: tuple[Group, ...]


def demand_directory(spec: ClusterSpec, hint: str) -> None:
    """See that a cluster has a directory.

    Raises:
        InputError: it has none.
    """
    if not spec.storage.home.enabled:
        message = "this cluster has no directory: its people are accounts of each host"
        raise InputError(message, where=str(spec.file), hint=hint)


class Door:
    """The way to the program on the controller."""

    def __init__(self, tools: Toolbox, controller: Controller) -> None:
        self._tools = tools
        self._controller = controller

    def ask(
        self, kind: type[T], operation: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> T:
        """Ask for one operation.

        Args:
            kind: what the answer is.
            timeout: seconds; None waits for as long as it takes.

        Raises:
            InputError: it is refused, or this cluster has no directory.
            ToolError: it failed, or there is no answer.
        """
        demand_directory(self._tools.spec, "Write them under users.people, and apply")
        return _PROGRAM.ask(
            lambda command: self._controller.ssh_argv(None, command), kind, operation, arguments or {}, timeout=timeout
        )

    def warn_of_file(self, names: Iterable[str], then: str) -> None:
        """Warn that the next apply goes by cluster.yml for those who stand there."""
        written = {person.name for person in self._tools.spec.users.people}
        both = [name for name in names if name in written]
        if both:
            verb = "stands" if len(both) == 1 else "stand"
            self._tools.warn(f"{', '.join(both)} {verb} in {self._tools.spec.file}, too: the next apply {then}")


_GOES_BY_FILE = "goes by what is written there. Change it there as well"
_COMES_BACK = "brings them back. Take them out there as well"


class Users:
    """The people of a cluster.

    What each method raises: InputError where the controller refuses, PartlyDone (a ToolError) where a part of it did
    not work, else ToolError. Hosts that did not answer are no failure: the result names them.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def list(self) -> tuple[User, ...]:
        """Everybody."""
        return self._door.ask(_People, "user.list", timeout=_PATIENCE).users

    def show(self, name: str) -> User:
        """One of them."""
        return self._door.ask(_Person, "user.show", {"name": name}, timeout=_PATIENCE).user

    def add(self, name: str, **wish: Unpack[Wish]) -> UserChange:
        """Let somebody in. Without further words they have no privileges."""
        return self._door.ask(UserChange, "user.add", {"name": name, **_one_of_each(wish)})

    def edit(self, name: str, **edit: Unpack[Edit]) -> UserChange:
        """Change what is named of somebody."""
        done = self._door.ask(UserChange, "user.edit", {"name": name, **_one_of_each(edit)})
        if done.changed:
            self._door.warn_of_file([name], _GOES_BY_FILE)
        return done

    def disable(self, name: str) -> UserChange:
        """Keep somebody out from now on, and end what they run. Everything of theirs stays."""
        return self._door.ask(UserChange, "user.disable", {"name": name})

    def enable(self, name: str) -> UserChange:
        """Let somebody in again."""
        return self._door.ask(UserChange, "user.enable", {"name": name})

    def remove(self, name: str, *, home: Literal["keep", "archive"] = "keep") -> Removal:
        """Remove somebody: directory entry, keys, association, jobs and processes; files stay, as they are or packed.

        Can be repeated: what could not be done, or not on every host, is done then.

        Args:
            home: "keep" leaves the home where it is, "archive" makes one file of it.
        """
        done = self._door.ask(Removal, "user.remove", {"name": name, "home": home})
        self._door.warn_of_file([name], _COMES_BACK)
        return done

    def import_file(self, file: Path) -> ImportReport:
        """Add everybody of a file (see `roster`), and change those who are there already. Can be done again.

        Raises:
            InputError: the file is wrong; `findings` has every fault. Nothing was asked.
        """
        people = users_file.read(file)
        done = self._door.ask(ImportReport, "user.import", {"users": people})
        self._door.warn_of_file([one.name for one in done.users if one.status == "changed"], _GOES_BY_FILE)
        return done


class Groups:
    """The groups of a cluster. What each method raises: InputError where the controller refuses, else ToolError."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def list(self) -> tuple[Group, ...]:
        """Every group."""
        return self._door.ask(_AllGroups, "group.list", timeout=_PATIENCE).groups

    def add(self, name: str, *, gid: int | None = None) -> GroupChange:
        """Make a group.

        Args:
            gid: its id; None takes the next that is free.
        """
        return self._door.ask(GroupChange, "group.add", {"name": name} if gid is None else {"name": name, "gid": gid})

    def remove(self, name: str) -> None:
        """Remove a group; files of it keep its number."""
        self._door.ask(dict[str, Any], "group.remove", {"name": name})

    def add_member(self, group: str, user: str) -> GroupChange:
        """Take somebody into a group."""
        return self._member("group.add_member", group, user)

    def remove_member(self, group: str, user: str) -> GroupChange:
        """Take somebody out of a group."""
        return self._member("group.remove_member", group, user)

    def _member(self, operation: str, group: str, user: str) -> GroupChange:
        done = self._door.ask(GroupChange, operation, {"group": group, "user": user})
        if done.changed:
            self._door.warn_of_file([user], _GOES_BY_FILE)
        return done


def _one_of_each(wish: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same. Raises InputError where two answers are given to one question."""
    for one, other in (
        ("gid", "group"),
        ("groups", "add_groups"),
        ("groups", "remove_groups"),
        ("ssh_keys", "add_ssh_keys"),
    ):
        if one in wish and other in wish:
            raise InputError(f"{one} and {other} can't be asked for together", hint="Say one of the two")
    return wish
