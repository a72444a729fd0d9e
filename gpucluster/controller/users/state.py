"""The state of the directory, read in one search."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpucluster.controller.users.config import Config
from gpucluster.controller.users.ldif import Entry

ATTRIBUTES = (
    *("objectClass", "uid", "cn", "uidNumber", "gidNumber", "homeDirectory", "loginShell", "description"),
    *("memberUid", "sshPublicKey", "shadowExpire", "serialNumber", "userPassword"),
    *("pwdAccountLockedTime", "pwdPolicySubentry"),
)
CLASSES = ("inetOrgPerson", "posixAccount", "shadowAccount", "ldapPublicKey")
#: shadowExpire of a disabled account: the second day of 1970.
ENDED = "1"
#: Slurm's limit of a user before disabling, as a note in the entry.
_LIMIT = re.compile(r"before disabling: account=([a-z0-9_.-]+) maxsubmitjobs=([0-9]+)")
#: A comment for sshd: keys of disabled users stay known, and don't allow a login.
_SET_ASIDE = "# disabled: "


@dataclass(frozen=True)
class DirectoryUser:
    """An entry of ou=people.

    Args:
        notes: its descriptions; those of others are kept.
        locked: whether wrong passwords have locked the password. It may be over: the next right password ends it.
    """

    name: str
    uid: int
    gid: int
    full_name: str
    home: str
    shell: str
    ssh_keys: tuple[str, ...] = ()
    enabled: bool = True
    dn: str = ""
    classes: frozenset[str] = frozenset(name.lower() for name in CLASSES)
    has_password: bool = False
    notes: tuple[str, ...] = ()
    locked: bool = False

    @property
    def limits(self) -> dict[str, str]:
        """Account in Slurm -> how many jobs a user could submit there before disabling."""
        return dict(match.groups() for match in map(_LIMIT.fullmatch, self.notes) if match)  # type: ignore[misc]

    def noting(self, limits: Mapping[str, str]) -> DirectoryUser:
        """The same entry with notes of these limits, and of no others."""
        others = [note for note in self.notes if not _LIMIT.fullmatch(note)]
        ours = [f"before disabling: account={account} maxsubmitjobs={limit}" for account, limit in limits.items()]
        return replace(self, notes=(*others, *sorted(ours)))

    @classmethod
    def read(cls, entry: Entry) -> DirectoryUser:
        """Read an entry of the server's answer."""
        keys = [text.strip() for text in entry.get("sshpublickey", [])]
        return cls(
            name=entry["uid"][0],
            uid=int(entry["uidnumber"][0]),
            gid=int(entry["gidnumber"][0]),
            full_name=entry.get("cn", [""])[0],
            home=entry.get("homedirectory", [""])[0],
            shell=entry.get("loginshell", [""])[0],
            ssh_keys=tuple(key[len(_SET_ASIDE) :] if key.startswith(_SET_ASIDE) else key for key in keys),
            enabled=entry.get("shadowexpire", [""])[0] != ENDED,
            dn=entry["dn"][0],
            classes=frozenset(name.lower() for name in entry.get("objectclass", [])),
            has_password="userpassword" in entry,
            notes=tuple(entry.get("description", [])),
            locked="pwdaccountlockedtime" in entry,
        )

    def attributes(self) -> dict[str, list[str]]:
        """The attributes that a change may set; name and uid never change."""
        words = self.full_name.split()
        return {
            "cn": [self.full_name],
            "sn": [words[-1] if words and any(map(str.isalpha, words[-1])) else self.full_name],
            "gidNumber": [str(self.gid)],
            "homeDirectory": [self.home],
            "loginShell": [self.shell],
            "shadowExpire": [] if self.enabled else [ENDED],
            "description": list(self.notes),
            "sshPublicKey": [key if self.enabled else _SET_ASIDE + key for key in self.ssh_keys],
        }


@dataclass(frozen=True)
class DirectoryGroup:
    """An entry of ou=groups; `members` are the users who have it in addition to their primary group."""

    name: str
    gid: int
    members: tuple[str, ...] = ()
    dn: str = ""

    @classmethod
    def read(cls, entry: Entry) -> DirectoryGroup:
        """Read an entry of the server's answer."""
        members = tuple(sorted(entry.get("memberuid", [])))
        return cls(entry["cn"][0], int(entry["gidnumber"][0]), members, entry["dn"][0])


@dataclass
class DirectoryState:
    """The whole directory.

    Args:
        known: every entry's name (DN), in lower case.
        retired_users: name -> uid of removed users. Their files keep the uid, so no other user gets it.
        retired_groups: name -> gid, likewise.
        next_uid: the counter's value; 0 where there is none yet.
        next_gid: likewise.
        hosts: entry (DN, lower case) -> stored hashes, of the entries with which hosts bind.
    """

    users: dict[str, DirectoryUser] = field(default_factory=dict)
    groups: dict[str, DirectoryGroup] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    retired_users: dict[str, int] = field(default_factory=dict)
    retired_groups: dict[str, int] = field(default_factory=dict)
    next_uid: int = 0
    next_gid: int = 0
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Config, entries: Iterable[Entry]) -> DirectoryState:
        """Read the server's answer for the whole directory."""
        state = cls()
        for entry in entries:
            dn = entry["dn"][0].lower()
            state.known.add(dn)
            if "uidnumber" in entry and "uid" in entry and dn.endswith("," + config.people_dn.lower()):
                user = DirectoryUser.read(entry)
                state.users[user.name] = user
            elif "gidnumber" in entry and dn.endswith("," + config.groups_dn.lower()):
                group = DirectoryGroup.read(entry)
                state.groups[group.name] = group
            elif dn.endswith("," + config.hosts_dn.lower()):
                state.hosts[dn] = tuple(entry.get("userpassword", ()))
            else:
                state._read_numbers(config, dn, entry)
        return state

    def _read_numbers(self, config: Config, dn: str, entry: Entry) -> None:
        if "serialnumber" in entry and dn.endswith("," + retired_dn(config, "people").lower()):
            self.retired_users[entry["cn"][0]] = int(entry["serialnumber"][0])
        elif "serialnumber" in entry and dn.endswith("," + retired_dn(config, "groups").lower()):
            self.retired_groups[entry["cn"][0]] = int(entry["serialnumber"][0])
        elif dn == counter_dn(config, "uid").lower():
            self.next_uid = int(entry["description"][0])
        elif dn == counter_dn(config, "gid").lower():
            self.next_gid = int(entry["description"][0])

    def group_of(self, gid: int) -> DirectoryGroup | None:
        """The group with this number."""
        return next((group for group in self.groups.values() if group.gid == gid), None)

    def groups_of(self, name: str) -> list[str]:
        """The groups that a user has in addition to the primary one."""
        return sorted(group.name for group in self.groups.values() if name in group.members)

    def members_of(self, group: DirectoryGroup) -> list[str]:
        """All users who have this group, as primary group or in addition."""
        primary = {user.name for user in self.users.values() if user.gid == group.gid}
        return sorted(primary | set(group.members))

    def privileged(self, config: Config) -> set[str]:
        """The members of the privilege group."""
        group = self.groups.get(config.privilege_group)
        return set(self.members_of(group)) if group else set()


def counter_dn(config: Config, kind: str) -> str:
    """The entry with the next uid or gid."""
    return f"cn=next-{kind},{config.suffix}"


def policy_dn(config: Config, name: str) -> str:
    """The policy for the passwords of `users` or `services`."""
    return f"cn={name},ou=policies,{config.suffix}"


def retired_dn(config: Config, kind: str) -> str:
    """The unit with the ids of removed users (`people`) or groups."""
    return f"ou={kind},ou=retired,{config.suffix}"


def described(
    state: DirectoryState, config: Config, user: DirectoryUser, accounts: Mapping[str, str]
) -> dict[str, object]:
    """A user as answers show them; `accounts`: user -> account in Slurm."""
    primary, groups = state.group_of(user.gid), state.groups_of(user.name)
    return {
        "name": user.name,
        "uid": user.uid,
        "gid": user.gid,
        "group": primary.name if primary else str(user.gid),
        "groups": groups,
        "full_name": user.full_name,
        "home": user.home,
        "shell": user.shell,
        "ssh_keys": list(user.ssh_keys),
        "enabled": user.enabled,
        "privileged": user.gid == config.privilege_gid or config.privilege_group in groups,
        "slurm_account": accounts.get(user.name),
    }
