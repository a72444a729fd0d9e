"""From the accounts and QOS of cluster.yml, those in Slurm, and those of the last run, to the commands of sacctmgr.

A setting that cluster.yml has is set where Slurm has another value. One that it had and no longer has gets Slurm's
default. All others belong to administrators: neither they nor accounts that the file never had are touched. An account
or a QOS that has left the file is removed only if nothing uses it; otherwise it stays as it is, and the next run tries
again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ROOT = "root"
#: The value of a setting that was never set, where that is not -1 (sacctmgr's word for none).
DEFAULTS = {"Fairshare": "1", "Priority": "0", "PreemptMode": "cluster", "Preempt": "", "QOS": ""}
#: Settings that are a list: sacctmgr prints them in the order of its numbers.
_LISTS = frozenset({"Preempt", "QOS"})
_NONE = "-1"
# The most names that are listed of what keeps an account or a QOS.
_MOST = 5

Settings = Mapping[str, str]
Command = tuple[str, ...]


@dataclass(frozen=True)
class Account:
    """An account: the one above it, and its settings by sacctmgr's names (`GrpTRES.gres/gpu`)."""

    parent: str
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Accounts:
    """Accounts, QOS, and users of accounts.

    Args:
        members: account -> users who may charge jobs to it: those that cluster.yml names, or all that Slurm has.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    qos: Mapping[str, Settings] = field(default_factory=dict)
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Accounts:
        """Read what `to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is not well formed.
        """
        return cls(
            {name: Account(str(one["parent"]), _texts(one["settings"])) for name, one in raw["accounts"].items()},
            {name: _texts(one["settings"]) for name, one in raw["qos"].items()},
            {name: tuple(map(str, users)) for name, users in raw["members"].items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """For the file that remembers it."""
        return {
            "accounts": {
                name: {"parent": one.parent, "settings": dict(one.settings)} for name, one in self.accounts.items()
            },
            "qos": {name: {"settings": dict(settings)} for name, settings in self.qos.items()},
            "members": {name: list(users) for name, users in self.members.items()},
        }


@dataclass(frozen=True)
class InUse:
    """What keeps an account or a QOS from being removed.

    Args:
        default_accounts: user -> default account.
        qos: QOS -> the users (`user alice`) and accounts that have it.
        jobs: (account, user, QOS) of each job that has not ended; None where slurmctld does not answer.
    """

    default_accounts: Mapping[str, str] = field(default_factory=dict)
    qos: Mapping[str, Sequence[str]] = field(default_factory=dict)
    jobs: Sequence[tuple[str, str, str]] | None = ()


@dataclass(frozen=True)
class AccountingPlan:
    """What to run, in this order.

    Args:
        kept: what has left cluster.yml and stays, each with the reason.
        after: what the next run has to remember.
    """

    commands: tuple[Command, ...]
    kept: tuple[str, ...]
    after: Accounts


def merged(before: Accounts, after: Accounts) -> Accounts:
    """What either of them has: for the time in which the commands between them run, and may be killed."""
    accounts = {
        name: replace(one, settings={**_known(before, name).settings, **one.settings})
        for name, one in {**before.accounts, **after.accounts}.items()
    }
    qos = {name: {**before.qos.get(name, {}), **after.qos.get(name, {})} for name in {**before.qos, **after.qos}}
    members = {
        name: tuple(dict.fromkeys([*before.members.get(name, ()), *after.members.get(name, ())]))
        for name in {**before.members, **after.members}
    }
    return Accounts(accounts, qos, members)


def _known(accounts: Accounts, name: str) -> Account:
    return accounts.accounts.get(name, Account(ROOT))


def plan(
    want: Accounts, before: Accounts, have: Accounts, used: InUse, cluster: str, *, keep: str = ""
) -> AccountingPlan:
    """The commands that lead to the wanted accounts.

    Args:
        before: what cluster.yml had at the last run. `have`: what Slurm has.
        cluster: its name in the accounting.
        keep: the default account of users, which is never removed.
    """
    where = f"cluster={cluster}"
    commands: list[Command] = []
    kept: dict[str, str] = {}
    for name in want.qos:
        if name not in have.qos:
            commands.append(("add", "qos", name))
    # A QOS may preempt one that is added after it.
    for name, settings in want.qos.items():
        changed = _changes(settings, before.qos.get(name, {}), have.qos.get(name, {}))
        if changed:
            commands.append(("modify", "qos", name, "set", *changed))
    for name in _from_the_root(want.accounts):
        commands += _account(name, want, before, have, where)
    members = _remove_members(want, before, have, used, where)
    commands += members[0]
    kept.update(members[1])
    left = {name: [user for user in users if (name, user) not in members[2]] for name, users in have.members.items()}
    gone = _remove_accounts(want, before, replace(have, members=left), used, where, keep)
    commands += gone[0]
    kept.update(gone[1])
    for name in before.qos:
        if name not in want.qos and name in have.qos:
            why = _use_of_qos(name, {*want.accounts, *gone[2]}, used)
            if why:
                kept[f"QOS {name}"] = why
            else:
                commands.append(("delete", "qos", name))
    return AccountingPlan(
        tuple(commands),
        tuple(f"{what} has left cluster.yml and stays: {why}" for what, why in kept.items()),
        _remembered(want, before, kept),
    )


def _texts(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in raw.items()}


def _changes(want: Settings, before: Settings, have: Settings) -> tuple[str, ...]:
    """The words after `set`. A TRES is set alone, and the others of its limit stay."""
    changes: dict[str, str] = {name: value for name, value in want.items() if not _same(name, value, have.get(name))}
    for name in before:
        default = DEFAULTS.get(name, _NONE)
        if name not in want and name != "Description" and not _same(name, default, have.get(name)):
            changes[name] = default
    words: dict[str, list[str]] = {}
    for name, value in changes.items():
        setting, _, tres = name.partition(".")
        words.setdefault(setting, []).append(f"{tres}={value}" if tres else value)
    return tuple(f"{setting}={','.join(values)}" for setting, values in words.items())


def _same(name: str, value: str, seen: str | None) -> bool:
    if not seen:
        return value in (_NONE, "") or (name in DEFAULTS and value == DEFAULTS[name])
    if name in _LISTS:
        return set(value.split(",")) == set(seen.split(","))
    return value.casefold() == seen.casefold()


def _from_the_root(accounts: Mapping[str, Account]) -> list[str]:
    """Each account after the one above it."""
    ordered: list[str] = []

    def place(name: str) -> None:
        if name in ordered or name not in accounts:
            return
        place(accounts[name].parent)
        ordered.append(name)

    for name in accounts:
        place(name)
    return ordered


def _account(name: str, want: Accounts, before: Accounts, have: Accounts, where: str) -> list[Command]:
    account, seen = want.accounts[name], have.accounts.get(name)
    commands: list[Command] = []
    if seen is None:
        text = account.settings.get("Description", name)
        words = (where, f"parent={account.parent}", f"description={text}", "organization=gpucluster")
        commands.append(("add", "account", name, *words))
        seen = Account(account.parent, {"Description": text})
    elif seen.parent != account.parent:
        commands.append(("modify", "account", "where", f"name={name}", where, "set", f"parent={account.parent}"))
    known = _known(before, name).settings
    changed = _changes(account.settings, known, seen.settings)
    # A description is of the account in all clusters: sacctmgr takes no cluster with it.
    for word in [word for word in changed if word.startswith("Description=")]:
        commands.append(("modify", "account", "where", f"name={name}", "set", word))
    rest = tuple(word for word in changed if not word.startswith("Description="))
    if rest:
        commands.append(("modify", "account", "where", f"name={name}", where, "set", *rest))
    return commands


def _remove_members(
    want: Accounts, before: Accounts, have: Accounts, used: InUse, where: str
) -> tuple[list[Command], dict[str, str], set[tuple[str, str]]]:
    removed: set[tuple[str, str]] = set()
    commands: list[Command] = []
    kept: dict[str, str] = {}
    for account, users in before.members.items():
        for user in users:
            if user in want.members.get(account, ()) or user not in have.members.get(account, ()):
                continue
            subject = f"user {user} of account {account}"
            if used.default_accounts.get(user) == account:
                continue  # it was made the user's own account since
            if used.jobs is None:
                kept[subject] = "slurmctld does not answer"
            elif any(job[:2] == (account, user) for job in used.jobs):
                kept[subject] = "there are jobs that have not ended"
            else:
                removed.add((account, user))
                commands.append(("delete", "user", "where", f"name={user}", where, f"account={account}"))
    return commands, kept, removed


def _remove_accounts(
    want: Accounts, before: Accounts, have: Accounts, used: InUse, where: str, keep: str
) -> tuple[list[Command], dict[str, str], set[str]]:
    commands: list[Command] = []
    kept: dict[str, str] = {}
    removed: set[str] = set()
    known = {name: have.accounts[name] for name in before.accounts if name in have.accounts}
    for name in reversed(_from_the_root(known)):
        if name in want.accounts or name == keep:
            continue
        why = _use_of_account(name, want, have, used, removed)
        if why:
            kept[f"account {name}"] = why
        else:
            removed.add(name)
            commands.append(("delete", "account", "where", f"name={name}", where))
    return commands, kept, removed


def _use_of_account(name: str, want: Accounts, have: Accounts, used: InUse, removed: set[str]) -> str:
    """What needs an account; empty if nothing does."""
    users = sorted(have.members.get(name, ()))
    below = [
        other
        for other, one in have.accounts.items()
        if other not in removed and want.accounts.get(other, one).parent == name
    ]
    if users:
        return f"it has users: {_some(users)}. Give them another account (cluster user edit NAME --slurm-account)"
    if below:
        return f"there are accounts below it: {_some(below)}"
    if used.jobs is None:
        return "slurmctld does not answer"
    if any(job[0] == name for job in used.jobs):
        return "there are jobs that have not ended"
    return ""


def _use_of_qos(name: str, without: Collection[str], used: InUse) -> str:
    """What needs a QOS. Accounts of the file no longer have it, and those that are removed."""
    having = [one for one in used.qos.get(name, ()) if one not in without]
    if having:
        return f"{_some(having)} {'has' if len(having) == 1 else 'have'} it"
    if used.jobs is None:
        return "slurmctld does not answer"
    return "there are jobs that have not ended" if any(job[2] == name for job in used.jobs) else ""


def _remembered(want: Accounts, before: Accounts, kept: Mapping[str, str]) -> Accounts:
    """What cluster.yml has, and what it had and could not be removed."""
    accounts = {name: one for name, one in before.accounts.items() if f"account {name}" in kept}
    qos = {name: one for name, one in before.qos.items() if f"QOS {name}" in kept}
    members = {name: list(users) for name, users in want.members.items()}
    for account, users in before.members.items():
        left = [user for user in users if f"user {user} of account {account}" in kept]
        if left:
            members[account] = [*members.get(account, []), *left]
    return Accounts({**accounts, **want.accounts}, {**qos, **want.qos}, members)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
