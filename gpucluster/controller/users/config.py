"""The configuration of the directory: a file that the role `people` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.controller.kubernetes.person_objects import Quota
from gpucluster.controller.users.existing import ExistingDirectory
from gpucluster.node_agent.errors import Failed

FILE = Path("/etc/gpucluster/directory.json")
#: The passwords with which hosts bind: `host_entries`.
HOSTS_FILE = Path("/var/lib/gpucluster-directory/hosts.json")
#: The command on the controller; rules of sudo may name it.
COMMAND = "/usr/local/bin/cluster"


@dataclass(frozen=True)
class Accounting:
    """Slurm's accounting: the cluster's name in it, and the account of users who ask for none.

    Args:
        members: account -> users who may use it besides their own, as cluster.yml has them.
    """

    cluster: str
    account: str
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def more_accounts(self, user: str) -> tuple[str, ...]:
        """The accounts that a user has in cluster.yml besides their own."""
        return tuple(sorted(account for account, users in self.members.items() if user in users))


@dataclass(frozen=True)
class HostLogins:
    """The other hosts.

    Args:
        login_user_by_host: the user with sudo on each host. A host may be a hostlist of Slurm (`gpu-e[1-8]`): its nodes
            that are in service are meant.
        key: the file of the private key with which root of the controller logs in there.
    """

    login_user_by_host: Mapping[str, str] = field(default_factory=dict)
    key: Path | None = None


@dataclass(frozen=True)
class Config:
    """The directory and what belongs to it.

    Args:
        home_base: the mount point of the share with the homes.
        hosts_file: the passwords with which hosts bind; only root of the controller can read the file.
        password_scheme: how the server stores passwords of users, without braces; empty if it is not known.
        existing: the directory that exists instead of the cluster's own; None: it has one of its own.
        kubernetes: the quota of each user there; None without Kubernetes.
        kubernetes_engine: whether the control plane is that of Oracle Kubernetes Engine.
        kubeconfig_hours: for how long a kubeconfig of a user is valid; 0 without Kubernetes.
    """

    uri: str
    suffix: str
    group: str
    gid: int
    privilege_group: str
    privilege_gid: int
    first_uid: int
    home_base: Path
    shell: str
    slurm: Accounting | None = None
    hosts: HostLogins = HostLogins()
    kubernetes: Quota | None = None
    kubernetes_engine: bool = False
    kubeconfig_hours: int = 0
    hosts_file: Path = HOSTS_FILE
    password_scheme: str = ""
    existing: ExistingDirectory | None = None

    @property
    def written_file(self) -> Path:
        """What `cluster` has written into the directory: see `written`."""
        return self.hosts_file.with_name("written.json")

    @property
    def name(self) -> str:
        """The first label of the suffix: the cluster's name."""
        return self.suffix.split(",", 1)[0].split("=", 1)[1]

    @property
    def people_dn(self) -> str:
        """The unit with the users."""
        return f"ou=people,{self.suffix}"

    @property
    def groups_dn(self) -> str:
        """The unit with the groups."""
        return f"ou=groups,{self.suffix}"

    @property
    def hosts_dn(self) -> str:
        """The unit with the entries of hosts."""
        return f"ou=hosts,{self.suffix}"

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Config:
        """Parse the file's object.

        Raises:
            KeyError, TypeError, ValueError: it is not well formed.
        """
        existing = raw.get("existing")
        slurm, hosts, quota = raw.get("slurm"), raw.get("hosts") or {}, raw.get("kubernetes")
        key = hosts.get("key")
        return cls(
            uri=raw["uri"],
            suffix=raw["suffix"],
            group=raw["group"],
            gid=int(raw["gid"]),
            privilege_group=raw["privilege_group"],
            privilege_gid=int(raw["privilege_gid"]),
            first_uid=int(raw["first_uid"]),
            home_base=Path(raw["home_base"]),
            shell=raw["shell"],
            slurm=Accounting(slurm["cluster"], slurm["account"], slurm.get("members") or {}) if slurm else None,
            hosts=HostLogins(dict(hosts.get("login_user_by_host") or {}), Path(key) if key else None),
            kubernetes=Quota(**quota) if quota is not None else None,
            kubernetes_engine=bool(raw.get("kubernetes_engine", False)),
            kubeconfig_hours=int(raw.get("kubeconfig_hours", 0)),
            hosts_file=Path(raw.get("hosts_file") or HOSTS_FILE),
            password_scheme=str(raw.get("password_scheme") or "").strip("{}"),
            existing=ExistingDirectory.parse(existing) if existing else None,
        )

    @classmethod
    def load(cls, file: Path = FILE) -> Config:
        """Read the file.

        Raises:
            Failed: it is missing or not well formed.
        """
        try:
            return cls.parse(json.loads(file.read_text(encoding="utf-8")))
        except KeyError as error:
            raise Failed(f"{file} has no {error.args[0]}", "Run `gpucluster apply`, which writes it") from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise Failed(f"{file} can't be used: {error}", "Run `gpucluster apply`, which writes it") from error
