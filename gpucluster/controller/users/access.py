"""Enable, disable and remove users. Disabling ends keys, password, jobs and processes at once, and each host confirms
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.controller.users import hosts, lock
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.outcome import UserOutcomes, unless_problem
from gpucluster.controller.users.slurm import DesiredAssociation
from gpucluster.controller.users.state import DirectoryState, DirectoryUser, described
from gpucluster.node_agent.errors import Refused

_CONTAINERS = (
    "containers that {name} started with Docker or sudo nerdctl still run: to list them, run docker ps on each host"
)


class Access:
    """Changes of the access to one cluster."""

    def __init__(self, controller: DirectoryController) -> None:
        self._controller = controller

    def enable(self, name: str) -> dict[str, Any]:
        """Let a user log in again.

        Raises:
            Refused: there is no such user.
            Failed: one part did not work; all others did.
        """
        with lock.held():
            outcome = UserOutcomes()
            user = self._switch(name, outcome, enabled=True)
            if self._controller.associate({name: DesiredAssociation(None, True, user.limits)}, outcome) and user.limits:
                outcome.attempt(name, lambda: self._note_limits(name, {}))
            outcome.attempt(name, lambda: self._controller.homes.lock(user))
            # A host that does not follow keeps the user out: it need not confirm.
            result = self._switched(name, outcome, 0, hosts.HostsReport())
        return unless_problem(outcome, result, f"{name} is enabled, but")

    def disable(self, name: str) -> dict[str, Any]:
        """Disable a user. All files, the entry and the uid stay.

        Raises:
            Refused: there is no such user.
            Failed: one part did not work; all others did.
            Unconfirmed: a host did not answer, or still lets the user in.
        """
        with lock.held():
            outcome = UserOutcomes()
            user = self._switch(name, outcome, enabled=False)
            slurm = self._controller.slurm
            none: dict[str, str] = {}
            limits = outcome.tried(name, none, lambda: slurm.limits(name)) if slurm else none
            if limits:
                outcome.attempt(name, lambda: self._note_limits(name, {**user.limits, **limits}))
            self._controller.associate({name: DesiredAssociation(None, False)}, outcome)
            expected = hosts.of_user(self._controller.state(), user)
            jobs, report = self._end(user, expected, outcome, gone=False)
            # What the owner has in the home may make this fail, so all else comes before.
            outcome.attempt(name, lambda: self._controller.homes.lock(user))
            result = self._switched(name, outcome, jobs, report)
        return report.require(unless_problem(outcome, result, f"{name} is disabled, but"), f"{name} is disabled, but")

    def _switch(self, name: str, outcome: UserOutcomes, *, enabled: bool) -> DirectoryUser:
        plan = self._controller.plan(self._controller.state())
        outcome.changed[name] = plan.enable(name, enabled=enabled)
        self._controller.apply(plan)
        return plan.user(name)

    def _note_limits(self, name: str, limits: dict[str, str]) -> bool:
        plan = self._controller.plan(self._controller.state(), {})
        plan.note_limits(name, limits)
        return self._controller.apply(plan)

    def _switched(self, name: str, outcome: UserOutcomes, jobs: int, report: hosts.HostsReport) -> dict[str, Any]:
        state = self._controller.state()
        user = described(state, self._controller.config, state.users[name], self._controller.accounts())
        warnings = [] if user["enabled"] else self._warnings(state, state.users[name])
        ended = {"jobs": jobs, "processes": report.ended}
        return {
            "user": user, "changed": outcome.changed[name], "ended": ended, **report.result, "warnings": warnings
        }  # fmt: skip

    def _warnings(self, state: DirectoryState, user: DirectoryUser) -> list[str]:
        privileged = described(state, self._controller.config, user, {})["privileged"]
        return [_CONTAINERS.format(name=user.name)] if privileged else []

    def _end(
        self, user: DirectoryUser, expected: Mapping[str, Any] | None, outcome: UserOutcomes, *, gone: bool
    ) -> tuple[int, hosts.HostsReport]:
        """End jobs and processes. Returns how many jobs there were, and what hosts report.

        Args:
            expected: what hosts should report of the user afterwards; None if that comes later.
        """
        slurm = self._controller.slurm
        jobs = outcome.tried(user.name, 0, lambda: slurm.end_jobs(user.uid)) if slurm else 0
        report = self._confirm(user, expected, gone=gone)
        # Jobs that the last processes have submitted.
        jobs += outcome.tried(user.name, 0, lambda: slurm.end_jobs(user.uid)) if slurm else 0
        return jobs, report

    def _confirm(self, user: DirectoryUser, expected: Mapping[str, Any] | None, *, gone: bool) -> hosts.HostsReport:
        users = [expected] if expected else []
        return hosts.confirm(self._controller.config.hosts, users, end=hosts.ending(user, gone=gone))

    def remove(self, name: str, *, archive: bool) -> dict[str, Any]:
        """Remove a user: entry, keys, association, jobs and processes. The uid is not used again for another user.

        For a user who was removed before, everything is done again: this completes what an earlier run could not do.

        Raises:
            Refused: there never was such a user.
            Failed: one part did not work; all others did.
            Unconfirmed: a host did not answer, or still knows the user.
        """
        controller, outcome = self._controller, UserOutcomes()
        slurm = controller.slurm
        with lock.held():
            state = controller.state()
            present = state.users.get(name)
            user = present or self._former(state, name)
            warnings = self._warnings(state, present) if present else []
            if present:
                # No new login and no new job may begin meanwhile.
                closing = controller.plan(state)
                closing.enable(name, enabled=False)
                controller.apply(closing)
            if slurm:
                outcome.tried(name, None, lambda: slurm.block(name))
            jobs, ended = self._end(user, None, outcome, gone=True)
            keys = outcome.tried(name, 0, lambda: controller.homes.take_keys(user))
            association = outcome.tried(name, False, lambda: slurm.remove(name)) if slurm else False
            if present:
                leaving = controller.plan(controller.state())
                leaving.remove(name)
                controller.apply(leaving)
            report = self._confirm(user, hosts.removed_user(user), gone=True)
        archived = outcome.tried(name, None, lambda: self._archive(user, outcome)) if archive else None
        result: dict[str, Any] = {
            "name": name,
            "removed": {
                "entry": present is not None,
                "association": association,
                # The keys of the directory are in the home as well, unless the home could not be read.
                "keys": max(keys, len(user.ssh_keys)),
                "jobs": jobs,
                "processes": ended.ended + report.ended,
            },
            "kept": [user.home] if controller.homes.has(name) else [],
            "archive": str(archived) if archived else None,
            **report.result,
            "warnings": warnings,
        }
        return report.require(unless_problem(outcome, result, f"{name} is removed, but"), f"{name} is removed, but")

    def _former(self, state: DirectoryState, name: str) -> DirectoryUser:
        """A user who was removed before, as far as that is known."""
        uid = state.retired_users.get(name)
        if uid is None:
            raise Refused(f"there is no user {name}", "Run: cluster user list")
        config = self._controller.config
        return DirectoryUser(name, uid, config.gid, name, str(config.home_base / name), config.shell, enabled=False)

    def _archive(self, user: DirectoryUser, outcome: UserOutcomes) -> Path | None:
        """Pack and delete the home, outside of the lock: a large home takes hours, and others need not wait."""
        homes, name = self._controller.homes, user.name
        homes.check("the home is unchanged")
        if homes.owners().get(name) not in (user.uid, None):
            raise Refused(f"the home of {name} belongs to another user", "It stays as it is")
        archive = homes.archive(name)
        with lock.held():
            if name in self._controller.state().users:
                raise Refused(f"{name} was created again in the meantime", "The home stays as it is")
            aside = homes.set_aside(name)
        outcome.tried(name, None, lambda: homes.sweep(name, aside))
        return archive
