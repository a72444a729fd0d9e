"""The cluster follows a directory that exists: its users get a home and a Slurm association, and lose the latter.

`gpucluster-agent directory check` finds what would keep hosts from using the directory; `follow` does the rest. A timer
runs it each minute, because a user must have both before the first login, on whatever host that is.

Who is a member is what SSSD of this host states (nested groups, small letters, limits of ids), together with those who
have the group as primary one, whom no group lists. If one of the groups is not known, nothing is changed: a directory
that does not answer must not take the associations of its users away.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.controller.rules import names as name_rules
from gpucluster.controller.users import lock, nss
from gpucluster.controller.users.config import FILE, Config
from gpucluster.controller.users.existing import ExistingDirectory, ExistingLdap, check
from gpucluster.controller.users.homes import Homes
from gpucluster.controller.users.outcome import sentence
from gpucluster.controller.users.slurm import DesiredAssociation, SlurmAccounting
from gpucluster.controller.users.state import DirectoryUser
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import AgentError, Failed, report

#: What sacctmgr, paths and sudo can hold; SSSD has made small letters of all others.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
_AT_A_TIME = 200
_PASSWD_FIELDS, _GROUP_FIELDS = 7, 4
#: Messages about single users in one answer.
_MOST_WARNINGS = 20


@dataclass(frozen=True)
class Followed:
    """What the last run has done, so that a run takes away nothing but what another one gave.

    Args:
        users: name -> uid of those who have a home and an association.
        left: those who have left, and whose association takes no jobs.
        administrators: those whom it has made administrators of Slurm.
    """

    users: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    administrators: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Followed:
        """Read the file; an empty one where there is none.

        Raises:
            Failed: it can't be used.
        """
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            return cls(dict(raw["users"]), dict(raw["left"]), tuple(raw["administrators"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(f"{file} can't be used: {error}", "Delete it: who has left is then no longer known") from error

    def write(self, file: Path) -> None:
        """Write it as a whole or not at all."""
        raw = {"users": dict(self.users), "left": dict(self.left), "administrators": list(self.administrators)}
        durable_file.replace(file, json.dumps(raw, sort_keys=True) + "\n", mode=0o600)


@dataclass(frozen=True)
class Members:
    """The users of the directory now.

    Args:
        users: by name.
        administrators: names.
        warnings: about those who are members, and can't be users.
    """

    users: Mapping[str, DirectoryUser]
    administrators: frozenset[str]
    warnings: tuple[str, ...] = ()


def unusable(name: str, uid: int, local: LocalAccounts) -> str:
    """Why a member of the directory's groups can't be a user here; empty if they can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} can't be the name of a user: Slurm and paths hold small letters, digits, `.`, `_` and `-`"
    if name_rules.is_reserved_name(name) or name in local.users or name in local.logins:
        return f"{name} is also an account of the system, which comes first"
    if uid in local.users.values() or name_rules.is_reserved_id(uid):
        return f"the uid of {name}, {uid}, belongs to the system"
    return ""


def parsed_passwd(line: str, base: Path) -> DirectoryUser | None:
    """A user of SSSD's answer, with the home on the share; None if the line is none."""
    parts = line.split(":")
    if len(parts) != _PASSWD_FIELDS or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    name, uid, gid, gecos, shell = parts[0], int(parts[2]), int(parts[3]), parts[4], parts[6]
    return DirectoryUser(name, uid, gid, gecos or name, str(base / name), shell)


def of_sssd(database: str, keys: Sequence[str]) -> list[str]:
    """The lines of SSSD, and of no other source, for these names."""
    lines: list[str] = []
    for start in range(0, len(keys), _AT_A_TIME):
        result = programs.call(["getent", "--service=sss", database, *keys[start : start + _AT_A_TIME]])
        lines += result.stdout.splitlines()
    return lines


def members(config: Config, directory: ExistingDirectory, local: LocalAccounts) -> Members:
    """Who is a user now.

    Raises:
        Failed: the directory, or SSSD, does not answer for one of the groups.
    """
    ldap = ExistingLdap(directory)
    ldap.connect()
    by_group: dict[str, set[str]] = {}
    for name in directory.groups:
        entry = ldap.group(name)
        rows = [line.split(":") for line in of_sssd("group", [name])]
        if not rows or len(rows[0]) != _GROUP_FIELDS:
            raise Failed(f"SSSD of this host does not know the group {name}", "Run: journalctl -u sssd")
        listed = {each for each in rows[0][3].split(",") if each}
        by_group[name] = listed | {each.lower() for each in ldap.primary_members(entry)}
    everyone = sorted(set().union(*by_group.values()))
    return _usable(config, everyone, frozenset().union(*(by_group[name] for name in directory.admin_groups)), local)


def _usable(config: Config, names: Sequence[str], administrators: frozenset[str], local: LocalAccounts) -> Members:
    found = (parsed_passwd(line, config.home_base) for line in of_sssd("passwd", names))
    known = {user.name: user for user in found if user is not None}
    warnings, users = [], {}
    for name in names:
        user = known.get(name)
        why = (
            unusable(name, user.uid, local)
            if user
            else f"SSSD does not know {name}: the uid or primary gid is outside of the limits, or it has none"
        )
        if why or user is None:
            warnings.append(why)
        else:
            users[name] = user
    return Members(users, administrators & users.keys(), tuple(warnings))


def wanted_associations(now: Members, before: Followed) -> dict[str, DesiredAssociation]:
    """Users who have an association, whatever limit an administrator has set; who has left and come back can submit
    again; who leaves can't.
    """
    # A user who left and is back may submit again: the limit was set here.
    present = {name: DesiredAssociation(None, True if name in before.left else None) for name in now.users}
    gone = {name: DesiredAssociation(None, enabled=False) for name in before.users if name not in now.users}
    return {**present, **gone}


class Follower:
    """Brings homes and Slurm to what the directory has."""

    def __init__(self, config: Config, local: LocalAccounts) -> None:
        if config.existing is None:
            raise Failed("this cluster has a directory of its own", "Run: cluster user list")
        self._config, self._directory, self._local = config, config.existing, local
        self._homes = Homes(config.home_base)
        self._slurm = SlurmAccounting(config.slurm) if config.slurm else None
        self._file = config.hosts_file.with_name("followed.json")

    def follow(self) -> dict[str, Any]:
        """Do it once.

        Returns:
            Whether anything changed, and what is wrong with single users.

        Raises:
            Failed: the directory, SSSD or Slurm's accounting does not answer.
        """
        self._homes.check()
        with lock.held():
            before = Followed.read(self._file)
            now = members(self._config, self._directory, self._local)
            made, problems = self._make_homes(now.users.values(), before.users)
            left = {**before.left, **before.users}
            after = Followed(
                {name: user.uid for name, user in now.users.items() if name not in problems},
                {name: uid for name, uid in left.items() if name not in now.users},
                before.administrators,
            )
            changed = self._associate(now, before) or bool(made)
            administrators = self._promote(now.administrators, before.administrators)
            changed = administrators or changed
            after = Followed(after.users, after.left, tuple(sorted(now.administrators)) if self._slurm else ())
            if after != before:
                after.write(self._file)
        warnings = [*now.warnings, *problems.values()]
        more = len(warnings) - _MOST_WARNINGS
        shown = [*warnings[:_MOST_WARNINGS], *([f"{more} more users"] if more > 0 else [])]
        return {"changed": changed, "users": [], "warnings": shown}

    def _make_homes(self, users: Iterable[DirectoryUser], done: Mapping[str, int]) -> tuple[list[str], dict[str, str]]:
        """Make the homes that are missing. Returns whose were made, and by user why one was not."""
        made, problems = [], {}
        owners = self._homes.owners()
        for user in users:
            if done.get(user.name) == user.uid == owners.get(user.name):
                continue
            try:
                if self._homes.make(user):
                    made.append(user.name)
            except (AgentError, OSError) as error:
                problems[user.name] = sentence(error) if isinstance(error, AgentError) else str(error)
        return made, problems

    def _associate(self, now: Members, before: Followed) -> bool:
        if self._slurm is None:
            return False
        return bool(self._slurm.associate(wanted_associations(now, before), nss.await_names))

    def _promote(self, administrators: Collection[str], before: Collection[str]) -> bool:
        if self._slurm is None:
            return False
        return self._slurm.administrators(administrators, set(before) - set(administrators))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `gpucluster-agent directory`."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent directory", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("check", "follow"))
    parser.add_argument("--quiet", action="store_true", help="print nothing where nothing changed and nothing is wrong")
    options = parser.parse_args(argv)
    try:
        config = Config.load(Path(FILE))
        follower = Follower(config, nss.local_accounts(config))
        if options.part == "check":
            assert config.existing is not None
            result: dict[str, Any] = {"changed": False, "warnings": check(config.existing)}
        else:
            result = follower.follow()
    except (AgentError, OSError) as error:
        return report(error)
    if not options.quiet or result["changed"] or result["warnings"]:
        sys.stdout.write(json.dumps({"result": result}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
