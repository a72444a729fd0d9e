"""What the directory on the controller says of people, as types. Nothing here talks to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict


def printable(text: str) -> str:
    """The text on one line, with an escape for whatever could move a cursor or hide what stands there."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class _Record:
    """Something that can be told to machines."""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class User(_Record):
    """A person who may log in.

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
    """A group, and the names of everybody who has it, as the primary one or a further one."""

    name: str
    gid: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Ended(_Record):
    """What of a person's was ended: numbers of jobs and processes, and the hosts on which nobody could look."""

    jobs: int = 0
    processes: int = 0
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class UserChange(_Record):
    """A person after a change; `changed` is whether it was one, `warnings` what somebody should look at now."""

    user: User
    changed: bool
    ended: Ended = Ended()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupChange(_Record):
    """A group after a change; `changed` is whether it was one."""

    group: Group
    changed: bool


@dataclass(frozen=True)
class Removed(_Record):
    """What is gone: the directory entry, Slurm's association, and so many ssh keys, jobs and processes."""

    entry: bool
    association: bool
    keys: int
    jobs: int
    processes: int


@dataclass(frozen=True)
class Removal(_Record):
    """How somebody was removed.

    Args:
        kept: paths that were left as they are.
        archive: where the home lies now, as one file; None where it was not asked for.
        unreachable: hosts on which nobody could look for processes.
        warnings: what somebody should look at now.
    """

    name: str
    removed: Removed
    kept: tuple[str, ...] = ()
    archive: str | None = None
    unreachable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imported(_Record):
    """What became of one person of an import; `message` says why it failed."""

    name: str
    status: Literal["added", "changed", "unchanged", "failed"]
    message: str | None = None


@dataclass(frozen=True)
class ImportReport(_Record):
    """What became of everybody, in the order of the file."""

    users: tuple[Imported, ...]
    changed: bool

    @property
    def failed(self) -> tuple[Imported, ...]:
        """Those for whom it did not work."""
        return tuple(one for one in self.users if one.status == "failed")


class Wish(TypedDict, total=False):
    """What may be asked for a new person; what is left out gets its default.

    `gid` or `group` is the primary group, `groups` are the further ones. Keys are the way in: sshd takes no passwords,
    and `password` is for what asks for one inside (`su`, `passwd`). `slurm_account` is the account of Slurm that their
    jobs are put down to.
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


class Edit(TypedDict, total=False):
    """What may be changed of a person; what is left out stays.

    `groups` and `ssh_keys` replace what there is, the others add to it and take from it.
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
