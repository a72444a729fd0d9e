"""From the present state and the desired state to the LDIF records that change one into the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from gpucluster.controller.rules import names, ssh_keys
from gpucluster.controller.users import ldif
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.desired import DesiredUser
from gpucluster.controller.users.state import (
    CLASSES,
    DirectoryGroup,
    DirectoryState,
    DirectoryUser,
    counter_dn,
    policy_dn,
    retired_dn,
)
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent.errors import Refused

#: So many wrong passwords within so many seconds lock a password, for that time.
_MOST_WRONG_PASSWORDS, _LOCK_SECONDS = 5, 900


@dataclass
class Plan:
    """A sequence of changes. `state` is the state after `records` are applied.

    Args:
        homes: name -> owner of the existing home directories. A home that outlived the directory still shows its uid.
        reserved_uids: uids that are requested for other users in the same request.
        new_users: users who did not exist before.
        before: the state before any change, as `written.described` compares it.
    """

    config: Config
    state: DirectoryState
    local: LocalAccounts
    homes: Mapping[str, int]
    reserved_uids: Set[int] = frozenset()
    new_users: set[str] = field(default_factory=set, init=False)
    before: Mapping[str, Mapping[str, str]] = field(default_factory=dict, init=False)
    _entries: list[str] = field(default_factory=list)
    _base_tree: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._privileged_before = self.state.privileged(self.config)
        self._counters = {"uid": self.state.next_uid, "gid": self.state.next_gid}
        first = self.config.first_uid
        self.state.next_uid = max(first, self.state.next_uid)
        self.state.next_gid = max(first, self.state.next_gid)
        self._plan_base_tree()

    @property
    def records(self) -> list[str]:
        """All records. A counter is raised before its number is used, so that no number is given twice."""
        counters = []
        for kind, now in (("uid", self.state.next_uid), ("gid", self.state.next_gid)):
            if self._counters[kind] not in (0, now):
                counters.append(ldif.modify(counter_dn(self.config, kind), replace={"description": [str(now)]}))
        return [*self._base_tree, *counters, *self._entries]

    def operator(self, name: str) -> bool | None:
        """Whether a user is an operator of Slurm; None for a user who was and is not a member of the privilege
        group.
        """
        if name in self.state.privileged(self.config):
            return True
        return False if name in self._privileged_before else None

    # ---- the base tree

    def _plan_base_tree(self) -> None:
        config, label = self.config, self.config.name
        top = [("objectClass", "dcObject"), ("objectClass", "organization"), ("dc", label), ("o", label)]
        self._ensure(config.suffix, top)
        units = (
            "people",
            "groups",
            "hosts",
            "policies",
            "retired",
            "people,ou=retired",
            "groups,ou=retired",
        )
        for unit in units:
            self._ensure(
                f"ou={unit},{config.suffix}", [("objectClass", "organizationalUnit"), ("ou", unit.split(",", 1)[0])]
            )
        self._plan_policies()
        for kind, first in (("uid", self.state.next_uid), ("gid", self.state.next_gid)):
            attributes = [("objectClass", "device"), ("cn", f"next-{kind}"), ("description", str(first))]
            if self._ensure(counter_dn(config, kind), attributes):
                self._counters[kind] = first
        for name, gid in ((config.group, config.gid), (config.privilege_group, config.privilege_gid)):
            self._ensure_group(name, gid)

    def _plan_policies(self) -> None:
        config, classes = self.config, [("objectClass", "device"), ("objectClass", "pwdPolicy")]
        limits = {"pwdMaxFailure": _MOST_WRONG_PASSWORDS}
        limits.update(pwdLockoutDuration=_LOCK_SECONDS, pwdFailureCountInterval=_LOCK_SECONDS)
        for name, lock in (("users", "TRUE"), ("services", "FALSE")):
            own = [("cn", name), ("pwdAttribute", "userPassword"), ("pwdLockout", lock)]
            own += [(key, str(value)) for key, value in limits.items() if lock == "TRUE"]
            self._ensure(policy_dn(config, name), [*classes, *own])

    def _ensure(self, dn: str, attributes: list[tuple[str, str]]) -> bool:
        if dn.lower() in self.state.known:
            return False
        self._base_tree.append(ldif.add(dn, attributes))
        self.state.known.add(dn.lower())
        return True

    def _ensure_group(self, name: str, gid: int) -> None:
        present, holder = self.state.groups.get(name), self.state.group_of(gid)
        if present and present.gid != gid:
            message = f"group {name} has gid {present.gid}; with gid {gid} its files would belong to no group"
            raise Refused(message, f"Write gid {present.gid} in cluster.yml")
        if holder and holder.name != name:
            raise Refused(f"gid {gid} for {name} belongs to group {holder.name}", "Choose another gid")
        if not present:
            self._add_group(name, gid, self._base_tree)

    def _add_group(self, name: str, gid: int, records: list[str]) -> None:
        dn = f"cn={name},{self.config.groups_dn}"
        records.append(ldif.add(dn, [("objectClass", "posixGroup"), ("cn", name), ("gidNumber", str(gid))]))
        self.state.groups[name] = DirectoryGroup(name, gid, (), dn)

    # ---- users

    def put_user(self, desired: DesiredUser) -> bool:
        """Create a user or change them to the desired state; returns whether anything changes.

        Raises:
            Refused: it is not possible; nothing of it is planned.
        """
        present = self.state.users.get(desired.name)
        primary = self._group(desired.group) if desired.group is not None else None
        desired_groups = self._desired_groups(desired, primary, present)
        if present is None:
            user = self._new_user(desired, primary)
            self.new_users.add(desired.name)
        else:
            if desired.uid not in (None, present.uid):
                message = (
                    f"{desired.name} has uid {present.uid}; with uid {desired.uid} the files would belong to no user"
                )
                raise Refused(message, "Leave the uid out: it never changes")
            user = self._changed(present, desired, primary)
        changed = self._put(user)
        for group in list(self.state.groups.values()):
            changed = self._set_member(group.name, desired.name, is_member=group.name in desired_groups) or changed
        return changed

    def _new_user(self, desired: DesiredUser, primary: DirectoryGroup | None) -> DirectoryUser:
        dn = f"uid={desired.name},{self.config.people_dn}"
        if dn.lower() in self.state.known:
            raise Refused(
                f"{desired.name} is in the directory already, and was created by hand", "Rename that entry or remove it"
            )
        return DirectoryUser(
            name=desired.name,
            uid=self._uid(desired),
            gid=primary.gid if primary else self.config.gid,
            full_name=desired.full_name or desired.name,
            home=str(self.config.home_base / desired.name),
            shell=desired.shell or self.config.shell,
            ssh_keys=tuple(dict.fromkeys((*(desired.ssh_keys or ()), *desired.add_ssh_keys))),
            dn=dn,
        )

    def _changed(self, present: DirectoryUser, desired: DesiredUser, primary: DirectoryGroup | None) -> DirectoryUser:
        keys = (*(present.ssh_keys if desired.ssh_keys is None else desired.ssh_keys), *desired.add_ssh_keys)
        return replace(
            present,
            gid=primary.gid if primary else present.gid,
            full_name=desired.full_name or present.full_name,
            home=str(self.config.home_base / present.name),
            shell=desired.shell or present.shell,
            ssh_keys=tuple(dict.fromkeys(_with_generated_key(keys, present, desired))),
        )

    def _desired_groups(
        self, desired: DesiredUser, primary: DirectoryGroup | None, present: DirectoryUser | None
    ) -> set[str]:
        for name in (*(desired.groups or ()), *desired.add_groups, *desired.remove_groups):
            self.group(name)
        now = set(self.state.groups_of(desired.name)) if desired.groups is None else set(desired.groups)
        gid = primary.gid if primary else present.gid if present else self.config.gid
        own = self.state.group_of(gid)
        return (now | set(desired.add_groups)) - set(desired.remove_groups) - ({own.name} if own else set())

    def _group(self, name_or_gid: str | int) -> DirectoryGroup:
        if isinstance(name_or_gid, str):
            return self.group(name_or_gid)
        group = self.state.group_of(name_or_gid)
        if group is None:
            raise Refused(f"no group has gid {name_or_gid}", f"Create one: cluster group add NAME --gid {name_or_gid}")
        return group

    def group(self, name: str) -> DirectoryGroup:
        """An existing group.

        Raises:
            Refused: there is none with this name.
        """
        group = self.state.groups.get(name)
        if group is None:
            known = ", ".join(sorted(self.state.groups)[:10])
            raise Refused(
                f"there is no group {name}", f"The groups are {known}. To create it, run: cluster group add {name}"
            )
        return group

    def user(self, name: str) -> DirectoryUser:
        """An existing user.

        Raises:
            Refused: there is none with this name.
        """
        user = self.state.users.get(name)
        if user is None:
            raise Refused(f"there is no user {name}", "Run: cluster user list")
        return user

    def _uid(self, desired: DesiredUser) -> int:
        """The uid of a new user: the requested one, the one they had before, that of their home, or the next one."""
        name, former = desired.name, self.state.retired_users.get(desired.name)
        if former is None and self.homes.get(name, 0) >= self.config.first_uid:
            former = self.homes[name]
        requested_uid = desired.uid if desired.uid is not None else former
        owner = self.homes.get(name, 0)
        if owner not in (0, requested_uid):
            message = f"the home of {name} exists already and belongs to uid {owner}"
            raise Refused(message, "Move it away, or request that uid")
        if requested_uid is not None:
            holder = next((user.name for user in self.state.users.values() if user.uid == requested_uid), None)
            if holder is None:
                holder = next(
                    (former_user for former_user, uid in self.state.retired_users.items() if uid == requested_uid), name
                )
            if holder != name:
                raise Refused(f"uid {requested_uid} for {name} belongs to {holder}", "Choose another, or leave it out")
            if desired.uid is not None and former not in (None, desired.uid):
                raise Refused(
                    f"{name} had uid {former}; their files still do", f"Leave the uid out, or request {former}"
                )
            if former is None and requested_uid < self.config.first_uid:
                first = self.config.first_uid
                raise Refused(
                    f"uid {requested_uid} for {name} is below the first one, {first}", "Choose another, or leave it out"
                )
            return requested_uid
        taken = {user.uid for user in self.state.users.values()} | set(self.state.retired_users.values())
        taken |= set(self.homes.values()) | set(self.local.users.values()) | set(self.reserved_uids)
        uid = _next(self.state.next_uid, taken)
        self.state.next_uid = uid + 1
        return uid

    def _put(self, user: DirectoryUser) -> bool:
        """Plan an entry; returns whether it changes."""
        present = self.state.users.get(user.name)
        classes = frozenset(name.lower() for name in CLASSES)
        if present is None:
            own = [("uid", user.name), ("uidNumber", str(user.uid))]
            rest = [(key, value) for key, values in user.attributes().items() for value in values]
            self._entries.append(ldif.add(user.dn, [*(("objectClass", name) for name in CLASSES), *own, *rest]))
            if self.state.retired_users.pop(user.name, None) is not None:
                self._recall("people", user.name)
        else:
            before, after = present.attributes(), user.attributes()
            values = {key: value for key, value in after.items() if value != before[key]}
            missing = [name for name in CLASSES if name.lower() not in present.classes]
            if not values and not missing:
                return False
            # Missing in entries that an older version made.
            more = {"objectClass": missing} if missing else {}
            self._entries.append(ldif.modify(user.dn, replace=values, add=more))
        self.state.users[user.name] = replace(user, classes=user.classes | classes)
        return True

    def enable(self, name: str, *, enabled: bool) -> bool:
        """Enable or disable a user; returns whether anything changes. A password that is locked is unlocked."""
        user = self.user(name)
        unlocked = enabled and user.locked
        if unlocked:
            # With the manager's right slapd forgets the wrong passwords, too.
            self._entries.append(ldif.modify(user.dn, delete={"pwdAccountLockedTime": []}))
        return self._put(replace(user, enabled=enabled, locked=False)) or unlocked

    def note_limits(self, name: str, limits: Mapping[str, str]) -> None:
        """Note the limits that a user had in Slurm, instead of those noted before."""
        self._put(self.user(name).noting(limits))

    def password(self, name: str, hashed: str) -> None:
        """Set the hash of a user's password."""
        self._entries.append(ldif.modify(self.user(name).dn, replace={"userPassword": [hashed]}))

    def remove(self, name: str) -> DirectoryUser:
        """Remove a user; the uid is noted first."""
        user = self.user(name)
        self._retire("people", name, user.uid)
        for group in list(self.state.groups.values()):
            self._set_member(group.name, name, is_member=False)
        self._entries.append(ldif.delete(user.dn))
        self.state.known.discard(user.dn.lower())
        del self.state.users[name]
        self.state.retired_users[name] = user.uid
        return user

    def _retire(self, kind: str, name: str, number: int) -> None:
        dn = f"cn={name},{retired_dn(self.config, kind)}"
        if dn.lower() not in self.state.known:
            self._entries.append(ldif.add(dn, [("objectClass", "device"), ("cn", name), ("serialNumber", str(number))]))
            self.state.known.add(dn.lower())

    def _recall(self, kind: str, name: str) -> None:
        dn = f"cn={name},{retired_dn(self.config, kind)}"
        self._entries.append(ldif.delete(dn))
        self.state.known.discard(dn.lower())

    # ---- groups

    def add_group(self, name: str, gid: int | None) -> bool:
        """Create a group; returns whether anything changes.

        Raises:
            Refused: its gid or its name is taken.
        """
        present, former = self.state.groups.get(name), self.state.retired_groups.get(name)
        if present:
            if gid not in (None, present.gid):
                raise Refused(f"group {name} has gid {present.gid}", "Leave the gid out: it never changes")
            return False
        if gid is not None and former not in (None, gid):
            raise Refused(
                f"group {name} had gid {former}; its files still do", f"Leave the gid out, or request {former}"
            )
        gid = gid if gid is not None else former
        taken = {group.gid: group.name for group in self.state.groups.values()}
        taken.update({number: who for who, number in self.state.retired_groups.items()})
        taken.update({number: who for who, number in self.local.groups.items()})
        if gid is None:
            gid = _next(self.state.next_gid, set(taken))
            self.state.next_gid = gid + 1
        elif taken.get(gid, name) != name:
            raise Refused(f"gid {gid} for {name} belongs to group {taken[gid]}", "Choose another, or leave it out")
        self._add_group(name, gid, self._entries)
        if self.state.retired_groups.pop(name, None) is not None:
            self._recall("groups", name)
        return True

    def remove_group(self, name: str) -> None:
        """Remove a group; its gid is noted first.

        Raises:
            Refused: it is in use.
        """
        group = self.group(name)
        if name in (self.config.group, self.config.privilege_group):
            raise Refused(f"group {name} belongs to the cluster", "It can't be removed; remove its members instead")
        holders = sorted(user.name for user in self.state.users.values() if user.gid == group.gid)
        if holders:
            shown = ", ".join(holders[:5])
            raise Refused(
                f"group {name} is the primary group of {shown}", "Give them another: cluster user edit --group"
            )
        self._retire("groups", name, group.gid)
        self._entries.append(ldif.delete(group.dn))
        del self.state.groups[name]
        self.state.retired_groups[name] = group.gid

    def set_member(self, name: str, user: str, *, is_member: bool) -> bool:
        """Add a user to a group or remove them from it; returns whether anything changes.

        Raises:
            Refused: the user or the group does not exist, or it is the primary group.
        """
        group, member = self.group(name), self.user(user)
        if member.gid == group.gid:
            if is_member:
                return False
            raise Refused(
                f"{name} is the primary group of {user}", f"Give them another: cluster user edit {user} --group"
            )
        return self._set_member(name, user, is_member=is_member)

    def _set_member(self, name: str, user: str, *, is_member: bool) -> bool:
        group = self.state.groups[name]
        if (user in group.members) == is_member:
            return False
        members = tuple(sorted({*group.members, user} if is_member else set(group.members) - {user}))
        self.state.groups[name] = replace(group, members=members)
        change = {"memberUid": [user]}
        self._entries.append(ldif.modify(group.dn, add=change) if is_member else ldif.modify(group.dn, delete=change))
        return True


def _with_generated_key(keys: Sequence[str], present: DirectoryUser, desired: DesiredUser) -> Sequence[str]:
    """The keys of a user, with the one generated key that counts: the new one if it is to be replaced, else the one
    that the directory has."""
    if new := desired.replace_generated_key:
        return (*(key for key in keys if ssh_keys.label(key) != ssh_keys.label(new)), new)
    if not (offered := desired.generated_key):
        return keys
    known = [key for key in present.ssh_keys if ssh_keys.label(key) == ssh_keys.label(offered)]
    if not known or any(ssh_keys.same(key, offered) for key in known):
        return keys
    return (*(key for key in keys if not ssh_keys.same(key, offered)), *known)


def _next(first: int, taken: Set[int]) -> int:
    number = first
    while number in taken or names.is_reserved_id(number):
        number += 1
    return number
