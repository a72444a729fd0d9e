"""The records of users and groups that the directory on the controller returns and accepts. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypedDict


class _Record:
    """A record that can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class User(_Record):
    """A user of the cluster.

    Args:
        group: the primary group, whose id is `gid`; `groups` are the further ones.
        enabled: whether they may log in now.
        privileged: whether they have root's powers in containers.
        slurm_account: None where the cluster has no Slurm.
    """

    name: str
    uid: int
    gid: int
    group: str
    groups: tuple[str, ...]
    full_name: str
    home: str
    shell: str
    ssh_keys: tuple[str, ...]
    enabled: bool
    privileged: bool
    slurm_account: str | None


@dataclass(frozen=True)
class Group(_Record):
    """A group, and the names of all users who have it, as their primary group or a further one."""

    name: str
    gid: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Ended(_Record):
    """What was ended of a user's work: numbers of jobs and processes."""

    jobs: int = 0
    processes: int = 0


@dataclass(frozen=True, kw_only=True)
class Confirmation(_Record):
    """How far hosts have confirmed a change of rights. Both are empty where it holds on every host.

    Args:
        unreachable: the hosts that did not answer.
        unconfirmed: host -> why the change does not hold there yet.
    """

    unreachable: tuple[str, ...] = ()
    unconfirmed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UserChange(Confirmation):
    """A user after a change. `changed` is whether anything changed; `warnings` are for the operator to act on."""

    user: User
    changed: bool
    ended: Ended = Ended()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupChange(Confirmation):
    """A group after a change. `changed` is whether anything changed."""

    group: Group
    changed: bool


@dataclass(frozen=True)
class GroupRemoval(Confirmation):
    """The result of removing a group. `changed`: whether it was there."""

    name: str
    changed: bool


@dataclass(frozen=True)
class Removed(_Record):
    """What was removed: the directory entry, Slurm's association, and the numbers of ssh keys, jobs and processes."""

    entry: bool
    association: bool
    keys: int
    jobs: int
    processes: int


@dataclass(frozen=True)
class Removal(Confirmation):
    """The result of removing a user.

    Args:
        kept: paths that were left as they are.
        archive: the file that holds the home now; None if no archive was requested.
        warnings: for the operator to act on.
    """

    name: str
    removed: Removed
    kept: tuple[str, ...] = ()
    archive: str | None = None
    warnings: tuple[str, ...] = ()


class ImportStatus(StrEnum):
    """What an import did with one user of the file."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True)
class Imported(_Record):
    """The result for one user of an import; `message` is the reason of a failure."""

    name: str
    status: ImportStatus
    message: str | None = None


@dataclass(frozen=True)
class ImportReport(Confirmation):
    """The result for every user of an import, in the order of the file."""

    users: tuple[Imported, ...]
    changed: bool

    @property
    def failed(self) -> tuple[Imported, ...]:
        """The users that failed."""
        return tuple(user for user in self.users if user.status is ImportStatus.FAILED)


class NewUser(TypedDict, total=False):
    """The settings of a new user; what is left out gets its default.

    `gid` or `group` is the primary group, `groups` are the further ones. Users log in with keys only: sshd takes no
    passwords. `password` is for programs on the hosts that ask for one (`su`, `passwd`). `slurm_account` is the account
    of Slurm that their jobs are charged to.
    """

    full_name: str
    uid: int
    gid: int
    group: str
    groups: Sequence[str]
    ssh_keys: Sequence[str]
    password: str
    shell: str
    slurm_account: str


class UserEdit(TypedDict, total=False):
    """The settings of a user that are to change; what is left out stays.

    `groups` and `ssh_keys` replace the present ones. `add_...` and `remove_...` add to them and take from them.
    """

    full_name: str
    gid: int
    group: str
    groups: Sequence[str]
    add_groups: Sequence[str]
    remove_groups: Sequence[str]
    ssh_keys: Sequence[str]
    add_ssh_keys: Sequence[str]
    password: str
    shell: str
    slurm_account: str
