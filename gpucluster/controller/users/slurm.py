"""Slurm associations: which users may submit jobs, and with which account."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucluster.controller.users.config import Accounting
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused

_SECONDS = 30.0
_AT_A_TIME = 200
_JOBS_END_SECONDS = 60.0
_JOBS_POLL_SECONDS = 0.2
#: For how long the accounting may not know yet that a job is over, and what is in the error of sacctmgr then.
_RECORDED_SECONDS, _ACTIVE = 30.0, "active, cancel"
#: The state of a job that is over while its nodes clean up. With a node that does not answer this may never end.
_OVER = "COMPLETING"
#: Slurm's levels of users who see the jobs of all, of those who may change its accounting, too, and of all others.
#: Other levels are not touched.
_OPERATOR, _ADMINISTRATOR, _NO_LEVEL = "Operator", "Administrator", "None"
#: Limits of jobs that may be submitted: none, and any number.
_BLOCKED, _NO_LIMIT = "0", "-1"


@dataclass(frozen=True)
class Association:
    """An existing association.

    Args:
        default: whether it is the user's default account.
        limit: how many jobs may be submitted with it; empty where no limit is set.
    """

    account: str
    default: bool
    limit: str = ""

    @property
    def blocked(self) -> bool:
        """Whether it takes no jobs."""
        return self.limit == _BLOCKED


@dataclass(frozen=True)
class DesiredAssociation:
    """The desired association of a user.

    Args:
        account: None: the present one, or else the cluster's default.
        enabled: None leaves a limit unchanged; an administrator may have set one.
        limits: account -> the limit that is restored when the user is enabled again.
        operator: whether the user sees and changes the jobs of all. None leaves that unchanged.
    """

    account: str | None
    enabled: bool | None
    limits: Mapping[str, str] = field(default_factory=dict)
    operator: bool | None = None


def plan(
    have: Mapping[str, Sequence[Association]],
    want: Mapping[str, DesiredAssociation],
    slurm: Accounting,
    levels: Mapping[str, str] | None = None,
) -> list[tuple[str, ...]]:
    """The arguments for sacctmgr that lead to the desired associations. Users who need the same change are put
    together.

    Args:
        levels: user -> present level of administration; of a new user, none.
    """
    levels = levels or {}
    steps: dict[tuple[str, ...], list[str]] = {}
    cluster = f"cluster={slurm.cluster}"
    for name, desired in sorted(want.items()):
        mine = have.get(name, ())
        now = next((one.account for one in mine if one.default), mine[0].account if mine else None)
        account = desired.account or now or slurm.account
        # Those of cluster.yml besides the user's own stay, and are made where they are missing.
        wanted = list(dict.fromkeys([account, *slurm.more_accounts(name)]))
        kept = [one for one in mine if one.account in wanted]
        missing = [one for one in wanted if one not in {each.account for each in mine}]
        for one_account in missing:
            steps.setdefault(("add", "user", cluster, f"account={one_account}"), []).append(name)
        if account != now and mine:
            steps.setdefault(("modify", "user", "where", cluster, "set", f"defaultaccount={account}"), []).append(name)
            for one in mine:
                if one.account not in wanted:
                    steps.setdefault(("delete", "user", "where", cluster, f"account={one.account}"), []).append(name)
        off = desired.enabled is False or (desired.enabled is None and mine and all(one.blocked for one in mine))
        if off and (missing or not all(one.blocked for one in kept)):
            steps.setdefault(("modify", "user", "where", cluster, "set", f"maxsubmitjobs={_BLOCKED}"), []).append(name)
        for one in kept if desired.enabled else ():
            if one.blocked:
                limit = desired.limits.get(one.account, _NO_LIMIT)
                where = (cluster, f"account={one.account}", "set", f"maxsubmitjobs={limit}")
                steps.setdefault(("modify", "user", "where", *where), []).append(name)
        present, level = levels.get(name, _NO_LEVEL), _OPERATOR if desired.operator else _NO_LEVEL
        if desired.operator is not None and {present, level} == {_OPERATOR, _NO_LEVEL}:
            steps.setdefault(("modify", "user", "where", "set", f"adminlevel={level}"), []).append(name)
    # An association is deleted only when the user has another one.
    order = {"add": 0, "modify": 1, "delete": 2}
    return [
        _with_names(words, names[start : start + _AT_A_TIME])
        for words, names in sorted(steps.items(), key=lambda step: order[step[0][0]])
        for start in range(0, len(names), _AT_A_TIME)
    ]


def _with_names(words: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """Put the names where sacctmgr expects them: after `where`, else after the first two words."""
    at = words.index("where") + 1 if "where" in words else 2
    return (*words[:at], f"name={','.join(names)}", *words[at:])


class SlurmAccounting:
    """The accounting database, through sacctmgr."""

    def __init__(self, slurm: Accounting) -> None:
        self._slurm = slurm
        self._known_accounts: set[str] | None = None

    def associations(self) -> dict[str, list[Association]]:
        """The associations of every user.

        Raises:
            Failed: the database does not answer.
        """
        fields = "user,account,maxsubmitjobs"
        # Without the limits of the account above: they are not the user's own.
        words = ("list", "associations", f"cluster={self._slurm.cluster}", "wopl")
        lines = self._rows(*words, f"format={fields}")
        defaults = dict(self._rows("list", "users", "format=user,defaultaccount"))
        associations: dict[str, list[Association]] = {}
        for user, account, limit in lines:
            if user:
                one = Association(account, defaults.get(user) == account, limit)
                associations.setdefault(user, []).append(one)
        return associations

    def accounts(self) -> dict[str, str]:
        """User -> default account."""
        return {user: account for user, account in self._rows("list", "users", "format=user,defaultaccount") if account}

    def check_accounts(self, names: Iterable[str]) -> None:
        """Check that these accounts exist.

        Raises:
            Refused: one does not.
            Failed: the database does not answer.
        """
        if self._known_accounts is None:
            self._known_accounts = {account for (account,) in self._rows("list", "accounts", "format=account")}
        for name in sorted(set(names) - self._known_accounts):
            raise Refused(f"Slurm has no account {name}", f"Run: sudo sacctmgr --immediate add account {name}")

    def associate(
        self, want: Mapping[str, DesiredAssociation], new_users: Callable[[Iterable[str]], object]
    ) -> set[str]:
        """Make associations as wanted; returns the users whose association changed.

        Args:
            want: user -> the desired association.
            new_users: is called with the users who have none yet, before they get one.

        Raises:
            Failed: the database does not answer, or refuses.
        """
        if self._slurm.members:
            known = {account for (account,) in self._rows("list", "accounts", "format=account")}
            members = {account: users for account, users in self._slurm.members.items() if account in known}
            self._slurm = replace(self._slurm, members=members)
        have = self.associations()
        new_users(name for name in want if name not in have)
        levels = dict(self._rows("list", "users", "format=user,adminlevel"))
        steps = plan(have, want, self._slurm, levels)
        for words in steps:
            self._sacctmgr(*words)
        listed = [word[len("name=") :].split(",") for words in steps for word in words if word.startswith("name=")]
        return {name for names in listed for name in names}

    def administrators(self, names: Collection[str], former: Collection[str]) -> bool:
        """Make users administrators of Slurm, and others of no level again; returns whether anything changed.

        Raises:
            Failed: the database does not answer, or refuses.
        """
        if not names and not former:
            return False
        levels = dict(self._rows("list", "users", "format=user,adminlevel"))
        steps = {
            _ADMINISTRATOR: [name for name in sorted(names) if levels.get(name, _ADMINISTRATOR) != _ADMINISTRATOR],
            _NO_LEVEL: [name for name in sorted(former) if levels.get(name) == _ADMINISTRATOR],
        }
        for level, which in steps.items():
            for start in range(0, len(which), _AT_A_TIME):
                listed = ",".join(which[start : start + _AT_A_TIME])
                self._sacctmgr("modify", "user", "where", f"name={listed}", "set", f"adminlevel={level}")
        return any(steps.values())

    def limits(self, name: str) -> dict[str, str]:
        """Account -> how many jobs a user may submit with it, where an administrator has set a limit."""
        return {one.account: one.limit for one in self.associations().get(name, ()) if one.limit and not one.blocked}

    def block(self, name: str) -> None:
        """Accept no more jobs of a user who is about to be removed."""
        if not all(one.blocked for one in self.associations().get(name, ())):
            where = (f"name={name}", f"cluster={self._slurm.cluster}")
            self._sacctmgr("modify", "user", "where", *where, "set", f"maxsubmitjobs={_BLOCKED}")

    def remove(self, name: str) -> bool:
        """Delete all associations of a user, whose jobs are over; returns whether there were any."""
        if name not in self.associations():
            return False
        until = time.monotonic() + _RECORDED_SECONDS
        while True:
            try:
                self._sacctmgr("delete", "user", "where", f"name={name}", f"cluster={self._slurm.cluster}")
            except Failed as error:
                # slurmctld shows the end of a job before it has told the accounting.
                if _ACTIVE not in error.message or time.monotonic() > until:
                    raise
                time.sleep(_JOBS_POLL_SECONDS)
            else:
                return True

    def end_jobs(self, uid: int) -> int:
        """Cancel all jobs of a user, also those submitted meanwhile, and wait until they are over.

        Slurm does not know which processes a finished job has left on a node: see hosts.py.

        Returns:
            How many jobs there were that were not over.

        Raises:
            Failed: the controller does not answer, or a job does not end.
        """
        cancelled: set[str] = set()
        ended: set[str] = set()
        until = time.monotonic() + _JOBS_END_SECONDS
        while states := self._jobs(uid):
            # Finished jobs as well: a requeued job is listed like them, and would start again.
            self._cancel([job for job in states if job not in cancelled])
            cancelled.update(states)
            left = [job for job, state in states.items() if state != _OVER]
            ended.update(left)
            if not left:
                break
            if time.monotonic() > until:
                raise Failed(f"{len(left)} jobs do not end: {' '.join(left[:5])}", "To see their nodes, run: squeue")
            time.sleep(_JOBS_POLL_SECONDS)
        return len(ended)

    def _cancel(self, jobs: Sequence[str]) -> None:
        for start in range(0, len(jobs), _AT_A_TIME):
            result = programs.call(["scancel", "--quiet", *jobs[start : start + _AT_A_TIME]], seconds=_SECONDS)
            if result.returncode != 0:
                raise Failed(f"jobs can't be cancelled: {_line(result.stderr)}", "Run: systemctl status slurmctld")

    def _jobs(self, uid: int) -> dict[str, str]:
        """Job number -> state. Slurm's own filter by user fails for users who are no longer in the directory."""
        result = programs.call(["squeue", "--all", "--noheader", "--format=%U %A %T"], seconds=_SECONDS)
        if result.returncode != 0:
            raise Failed(f"Slurm does not answer: {_line(result.stderr)}", "Run: systemctl status slurmctld")
        rows = [line.split() for line in result.stdout.splitlines()]
        return {job: state for owner, job, state in rows if owner == str(uid)}

    def _rows(self, *words: str) -> list[list[str]]:
        output = self._sacctmgr("--noheader", "--parsable2", *words)
        return [line.split("|") for line in output.splitlines() if line]

    def _sacctmgr(self, *words: str) -> str:
        result = programs.call(["sacctmgr", "--immediate", *words], seconds=_SECONDS)
        if result.returncode != 0:
            message = _line(result.stderr.strip() or result.stdout)
            raise Failed(f"Slurm's accounting answers with an error: {message}", "Run: systemctl status slurmdbd")
        return result.stdout


def _line(text: str) -> str:
    return " ".join(text.split())
