"""Carries out operations: reads the directory, plans, applies the plan, then updates homes and Slurm associations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from gpucluster.controller.users import base_tree, hosts, lock, values, written
from gpucluster.controller.users.access import Access
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.desired import DesiredUser
from gpucluster.controller.users.errors import InHome
from gpucluster.controller.users.host_entries import DesiredHost
from gpucluster.controller.users.outcome import UserOutcomes, partly, unless_problem
from gpucluster.controller.users.plan import Plan
from gpucluster.controller.users.slurm import DesiredAssociation
from gpucluster.controller.users.state import DirectoryState, described
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent import passwords
from gpucluster.node_agent.errors import AgentError, Failed, Refused, Unconfirmed


class UserService:
    """The users of this cluster.

    Args:
        wait: seconds to wait for a server that is still starting.
    """

    def __init__(self, config: Config, local: LocalAccounts, wait: float = 30) -> None:
        self.config, self.local = config, local
        self._controller = DirectoryController(config, local, wait)
        self._homes = self._controller.homes
        self._slurm = self._controller.slurm
        self._state, self._plan = self._controller.state, self._controller.plan
        self.access = Access(self._controller)
        self.tell_kubernetes, self.check_followed = self._controller.tell_kubernetes, self._controller.check_followed

    # ---- reading

    def users(self, state: DirectoryState | None = None) -> list[dict[str, object]]:
        """All users, by uid. Where accounting does not answer, their accounts are not known."""
        state = state or self._state()
        accounts = self._controller.accounts()
        users = sorted(state.users.values(), key=lambda user: user.uid)
        return [described(state, self.config, user, accounts) for user in users]

    def user(self, name: str) -> dict[str, object]:
        """One user.

        Raises:
            Refused: there is none with this name.
        """
        state = self._state()
        user = self._plan(state).user(name)
        return described(state, self.config, user, self._controller.accounts())

    def groups(self) -> list[dict[str, object]]:
        """All groups, by gid."""
        state = self._state()
        return [_group(state, name) for name in sorted(state.groups, key=lambda name: state.groups[name].gid)]

    # ---- users

    def base_tree(self, desired_hosts: Sequence[DesiredHost] = (), *, lock_held: bool = False) -> bool:
        """Create the base tree, with the entries with which hosts bind; returns whether anything changed.

        Args:
            desired_hosts: the hosts of this run.
            lock_held: the caller holds the lock already, as the restore of a backup does.
        """
        with nullcontext() if lock_held else lock.held():
            if lock_held:
                # The directory is that of the backup: what was written into the one before does not count.
                written.forget(self.config.written_file)
            return base_tree.make(self._controller, desired_hosts)

    def revoke_hosts(self, permanent: Sequence[str]) -> bool:
        """Remove the entries of hosts that are gone: see `base_tree.revoke`."""
        with lock.held():
            return base_tree.revoke(self._controller, permanent)

    def add(self, desired: DesiredUser) -> dict[str, Any]:
        """Create a user. An existing user who is as requested is completed.

        Raises:
            Refused: the user exists and differs, or the request is not possible.
            Failed: a part did not work; the next run does it.
        """
        return self._put(desired, new=True)

    def edit(self, desired: DesiredUser) -> dict[str, Any]:
        """Change a user.

        Raises:
            Refused: there is no such user, or the request is not possible.
            Failed: a part did not work.
            Unconfirmed: a host did not answer, or has other groups or keys of the user.
        """
        return self._put(desired, new=False)

    def _put(self, desired: DesiredUser, *, new: bool) -> dict[str, Any]:
        self._homes.check()
        with lock.held():
            self._check_accounts([desired])
            state = self._state()
            plan = self._plan(state)
            if not new:
                plan.user(desired.name)
            present = desired.name in state.users
            before = len(plan.records)
            plan.put_user(desired)
            if new and present and (len(plan.records) > before or self._other_password(plan, desired)):
                raise Refused(
                    f"the user {desired.name} exists already",
                    f"To change the user, run: cluster user edit {desired.name}",
                )
            outcome = self._carry_out(plan, [desired])
            if desired.name in outcome.problems:
                raise partly(outcome.problems[desired.name], f"{desired.name} is in the directory, but")
            user = described(plan.state, self.config, plan.user(desired.name), self._controller.accounts())
            # A new user has no rights that a host could still remember.
            report = self._confirm(plan.state, [] if new or not desired.changes_rights else [desired.name])
            result = {"user": user, "changed": outcome.any_change, **report.result}
            return report.require(result, f"{desired.name} is changed in the directory, but")

    def _confirm(
        self, state: DirectoryState, names: Sequence[str], removed_groups: Sequence[str] = ()
    ) -> hosts.HostsReport:
        """Let every host confirm the groups and keys of users, and that it does not know groups that were removed."""
        if not names and not removed_groups:
            return hosts.HostsReport()
        users = [hosts.of_user(state, state.users[name]) for name in names]
        return hosts.confirm(self.config.hosts, users, removed_groups)

    def _other_password(self, plan: Plan, desired: DesiredUser) -> bool:
        return plan.user(desired.name).has_password and self._password_differs(plan, desired)

    def add_many(self, users: Sequence[DesiredUser]) -> tuple[UserOutcomes, hosts.HostsReport, set[str]]:
        """Create or change many users, each independently of the others.

        Returns:
            The outcome, what hosts report about groups and keys of those who existed before, and the names of these
            users.
        """
        self._homes.check()
        with lock.held():
            state = self._state()
            before = set(state.users)
            outcome, plan = UserOutcomes(), self._plan(state, reserved=_uids(users))
            able = []
            for desired in _numbered_first(users):
                try:
                    self._check_accounts([desired])
                    outcome.changed[desired.name] = plan.put_user(desired)
                    able.append(desired)
                except AgentError as error:
                    outcome.problems[desired.name] = error
            self._carry_out(plan, able, outcome)
            known = [desired.name for desired in able if desired.name in before and desired.changes_rights]
            return outcome, self._confirm(plan.state, known), before

    def converge(
        self, users: Sequence[DesiredUser], absent: Sequence[str]
    ) -> tuple[UserOutcomes, DirectoryState, list[str], list[Unconfirmed]]:
        """Bring users to the desired state, all or none of them. Users who are not mentioned stay unchanged.

        Returns:
            The outcome (with the errors inside of homes), the new state, the names of the removed users, and what hosts
            have not confirmed of their removal.

        Raises:
            Refused: one of them is not possible; nothing was changed.
            Failed: a part did not work; all others did.
        """
        self._homes.check()
        with lock.held():
            self._check_accounts(users)
            plan = self._plan(self._state(), reserved=_uids(users))
            outcome = UserOutcomes()
            self._plan_groups(plan, users)
            for desired in _numbered_first(users):
                outcome.changed[desired.name] = plan.put_user(desired)
            gone = [name for name in absent if name in plan.state.users]
            self._carry_out(plan, users, outcome)
        unconfirmed = []
        for name in gone:
            try:
                self.access.remove(name, archive=False)
            except Unconfirmed as error:
                unconfirmed.append(error)
        for problem in outcome.problems.values():
            # Files of one user must not prevent changes for other users.
            if not isinstance(problem, InHome):
                raise problem
        # Also where nothing changed here: it may not have existed at the last change.
        with lock.held():
            outcome.general = self.tell_kubernetes() or outcome.general or bool(gone)
        state = self._state() if gone else plan.state
        return outcome, state, gone, unconfirmed

    def preview(self, users: Sequence[DesiredUser]) -> dict[str, object]:
        """What `converge` would do to the directory, without doing it: the names of groups and users.

        Raises:
            Refused: one of them is not possible.
        """
        self._check_accounts(users)
        plan = self._plan(self._state(), reserved=_uids(users))
        accounts = self._controller.accounts() if any(user.slurm_account for user in users) else {}
        groups = self._plan_groups(plan, users)
        changed = []
        for desired in _numbered_first(users):
            other_account = desired.slurm_account not in (None, accounts.get(desired.name))
            if plan.put_user(desired) or (self._slurm is not None and other_account):
                changed.append(desired.name)
        return {
            "groups": groups,
            "added": sorted(name for name in changed if name in plan.new_users),
            "changed": sorted(name for name in changed if name not in plan.new_users),
        }

    def _plan_groups(self, plan: Plan, users: Sequence[DesiredUser]) -> list[str]:
        """Plan the groups that are missing: cluster.yml names groups only at users. Returns their names."""
        missing = sorted({group for user in users for group in user.groups or ()} - set(plan.state.groups))
        for group in missing:
            plan.add_group(values.group_name(group, self.local), None)
        return missing

    def _carry_out(self, plan: Plan, users: Sequence[DesiredUser], outcome: UserOutcomes | None = None) -> UserOutcomes:
        """Apply a plan, then update homes and associations."""
        outcome = outcome or UserOutcomes()
        for desired in users:
            outcome.attempt(desired.name, lambda desired=desired: self._set_password(plan, desired))  # type: ignore[misc]
        outcome.general = self._controller.apply(plan, users) or outcome.general
        for desired in users:
            user = plan.user(desired.name)
            outcome.attempt(desired.name, lambda user=user: self._homes.make(user))  # type: ignore[misc]
        self._controller.associate({desired.name: _desired_association(plan, desired) for desired in users}, outcome)
        return outcome

    def _set_password(self, plan: Plan, desired: DesiredUser) -> bool:
        if desired.password is None or not self._password_differs(plan, desired):
            return False
        known = self.config.password_scheme
        schemes = (known, passwords.SCHEMES[-1]) if known else passwords.SCHEMES
        plan.password(desired.name, passwords.hashed(desired.password, schemes))
        return True

    def _password_differs(self, plan: Plan, desired: DesiredUser) -> bool:
        user = plan.user(desired.name)
        if desired.password is None or not user.has_password:
            return desired.password is not None
        with passwords.in_a_file(desired.password) as file:
            return not self._controller.ldap.accepts(user.dn, file)

    def _check_accounts(self, users: Sequence[DesiredUser]) -> None:
        accounts = {user.slurm_account for user in users if user.slurm_account}
        if not accounts:
            return
        if self._slurm is None:
            raise Refused("this cluster has no accounts of Slurm", "Leave slurm_account out")
        try:
            self._slurm.check_accounts(accounts)
        except Failed:
            # The directory is changed nevertheless; the error is reported when associations are made.
            return

    # ---- groups

    def add_group(self, name: str, gid: int | None) -> dict[str, Any]:
        """Create a group."""
        with lock.held():
            plan = self._plan(self._state(), {})
            changed = plan.add_group(name, gid)
            self._controller.apply(plan)
        return {"group": _group(plan.state, name), "changed": changed}

    def set_member(self, group: str, user: str, *, is_member: bool) -> dict[str, Any]:
        """Add a user to a group, or remove them.

        Raises:
            Failed: a member of the privilege group did not become an operator of Slurm, or is one still.
            Unconfirmed: a host did not answer, or has other groups of the user.
        """
        outcome = UserOutcomes()
        with lock.held():
            plan = self._plan(self._state(), {})
            changed = plan.set_member(group, user, is_member=is_member)
            self._controller.apply(plan)
            if group == self.config.privilege_group:
                operator = DesiredAssociation(None, None, operator=plan.operator(user))
                self._controller.associate({user: operator}, outcome)
            report = self._confirm(plan.state, [user])
        result = {"group": _group(plan.state, group), "changed": changed, **report.result}
        so_far = f"{user} is {'a' if is_member else 'not a'} member of {group}, but"
        return report.require(unless_problem(outcome, result, so_far), so_far)

    def remove_group(self, name: str) -> dict[str, Any]:
        """Remove a group. For one that was removed before, hosts are asked again.

        Raises:
            Refused: there never was such a group, or it is in use.
            Unconfirmed: a host did not answer, or still knows the group.
        """
        with lock.held():
            plan = self._plan(self._state(), {})
            present = name in plan.state.groups or name not in plan.state.retired_groups
            if present:
                plan.remove_group(name)
            self._controller.apply(plan)
            report = self._confirm(plan.state, [], [name])
        return report.require({"name": name, "changed": present, **report.result}, f"{name} is removed, but")


def _numbered_first(users: Sequence[DesiredUser]) -> list[DesiredUser]:
    """Users with a requested uid first, so that no other user gets it."""
    return sorted(users, key=lambda user: user.uid is None)


def _uids(users: Sequence[DesiredUser]) -> frozenset[int]:
    return frozenset(user.uid for user in users if user.uid is not None)


def _desired_association(plan: Plan, desired: DesiredUser) -> DesiredAssociation:
    """Of enabled users, only a new user's limit is removed: an administrator may have set those of the others."""
    enabled = plan.state.users[desired.name].enabled
    limited = None if enabled and desired.name not in plan.new_users else enabled
    return DesiredAssociation(desired.slurm_account, limited, operator=plan.operator(desired.name))


def _group(state: DirectoryState, name: str) -> dict[str, object]:
    group = state.groups[name]
    return {"name": group.name, "gid": group.gid, "members": state.members_of(group)}
