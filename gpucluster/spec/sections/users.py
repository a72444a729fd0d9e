"""Section `users`: the users of the cluster."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PrivateAttr

from gpucluster.controller.rules.names import FULL_NAME_CHARACTERS
from gpucluster.spec.sections.directory import ExistingDirectory
from gpucluster.spec.sections.fields import (
    SLURM_CLUSTER_PATTERN,
    AbsolutePath,
    FileName,
    Id,
    Resolved,
    SpecPart,
    UserName,
)


class UserSpec(SpecPart):
    """One user of the cluster."""

    name: UserName = Field(description="Login name.", examples=["alice"])
    full_name: str = Field(
        default="",
        max_length=FULL_NAME_CHARACTERS,
        description="Full name. Default: the login name.",
        examples=["Alice Example"],
    )
    uid: Id | None = Field(
        default=None,
        description="User id. `null`: the next free one from `first_uid`. Required where there is no home share.",
    )
    group: UserName = Field(default="", description="Primary group: `users.group` or `users.privilege_group`.")
    groups: tuple[UserName, ...] = Field(
        default=(),
        max_length=100,
        description="Additional groups. Only users that list `privilege` here are members of it. Groups that do not "
        "exist on the cluster are created.",
        examples=[["privilege"]],
    )
    shell: AbsolutePath = Field(default="/bin/bash", description="Login shell.")
    slurm_account: str | None = Field(
        default=None, pattern=SLURM_CLUSTER_PATTERN, description="Account in Slurm. `null`: the cluster's default one."
    )
    ssh_public_keys: tuple[str, ...] = Field(
        default=(), description="Public keys, as in a .pub file.", examples=[["ssh-ed25519 AAAA... alice@laptop"]]
    )
    ssh_public_key_files: tuple[FileName, ...] = Field(
        default=(), description="Files with public keys, relative to this file.", examples=[["alice.pub"]]
    )
    generate_key: bool = Field(
        default=False,
        description="Instead of the user's own key: gpucluster generates a key pair in its state directory. Provider "
        "local only.",
    )
    _file_keys: tuple[str, ...] = PrivateAttr(default=())

    def model_post_init(self, context: Any) -> None:
        """Take the content of the key files from the validation context."""
        if isinstance(context, Resolved):
            in_files = (context.public_keys.get(name, ()) for name in self.ssh_public_key_files)
            self._file_keys = tuple(key for keys in in_files for key in keys)

    @property
    def ssh_keys(self) -> tuple[str, ...]:
        """Every public key of this user, including those in files, without duplicates."""
        return tuple(dict.fromkeys((*(key.strip() for key in self.ssh_public_keys), *self._file_keys)))


class UsersSpec(SpecPart):
    """The users of the cluster: in LDAP on the controller; without a home share, local users of each host."""

    group: UserName = Field(default="people", description="Primary group of every user that names no other.")
    gid: Id = Field(default=9999, description="Id of that group.")
    privilege_group: UserName = Field(
        default="privilege",
        description="Group whose members may run containers with root privileges, such as Docker's.",
    )
    privilege_gid: Id = Field(default=9876, description="Id of that group.")
    first_uid: Id = Field(default=10001, description="Lowest user id.")
    keys_in_homes: bool = Field(
        default=False,
        description="Whether keys in `~/.ssh/authorized_keys` let users log in, besides those in the directory. Root "
        "of each node can write into homes, and with `true` log in to the controller as any user.",
    )
    hide_processes: bool = Field(
        default=True,
        description="Users see only their own processes on a host. Root and members of `privilege_group` see all.",
    )
    people: tuple[UserSpec, ...] = Field(default=(), max_length=1000, description="The users.")
    directory: ExistingDirectory | None = Field(
        default=None,
        description="A directory that exists (LDAP, Active Directory, FreeIPA), whose users are those of the cluster. "
        "`null`: the cluster has one of its own, with the users of `people`.",
    )
