"""Slurm's accounting as it is, and as cluster.yml has it: sacctmgr, and the file with what the last run wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.controller.accounts.plan import ROOT, Account, Accounts, InUse, merged, plan
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.passwords import write_file

#: On the controller's volume, where it has one.
REMEMBERED = Path("/var/lib/gpucluster-directory/slurm-accounts.json")

_SECONDS = 60.0
# Columns of sacctmgr, and what sets them.
_OF_QOS = {
    "Description": "Description",
    "Priority": "Priority",
    "Preempt": "Preempt",
    "PreemptMode": "PreemptMode",
    "GrpJobs": "GrpJobs",
    "GrpSubmit": "GrpSubmitJobs",
    "GrpTRES": "GrpTRES",
    "GrpTRESMins": "GrpTRESMins",
    "MaxWall": "MaxWall",
    "MaxJobsPU": "MaxJobsPerUser",
    "MaxSubmitPU": "MaxSubmitJobsPerUser",
    "MaxTRESPU": "MaxTRESPerUser",
}
_OF_ACCOUNT = {
    "Share": "Fairshare",
    "GrpJobs": "GrpJobs",
    "GrpSubmit": "GrpSubmitJobs",
    "GrpTRES": "GrpTRES",
    "GrpTRESMins": "GrpTRESMins",
    "MaxWall": "MaxWall",
    "QOS": "QOS",
    "DefaultQOS": "DefaultQOS",
}
_WITH_TRES = frozenset({"GrpTRES", "GrpTRESMins", "MaxTRESPerUser"})


def run(wanted: Mapping[str, Any], remembered: Path, *, change: bool) -> dict[str, Any]:
    """Make the accounting as wanted, or only compare it.

    Raises:
        Failed: the accounting does not answer, or refuses a command. Run again: what was done stays done.
    """
    want, before, cluster = Accounts.parse(wanted), _remembered(remembered), str(wanted["cluster"])
    have, used = observe(cluster)
    planned = plan(want, before, have, used, cluster=cluster, keep=str(wanted["default_account"]))
    if change:
        # Before the commands: what a killed run has made is known to be the file's.
        _remember(remembered, merged(before, planned.after))
        for command in planned.commands:
            sacctmgr("--immediate", *command)
        _remember(remembered, planned.after)
    return {
        "changed": bool(planned.commands),
        "commands": [" ".join(command) for command in planned.commands],
        "kept": list(planned.kept),
    }


def observe(cluster: str) -> tuple[Accounts, InUse]:
    """What Slurm has, and what uses it.

    Raises:
        Failed: the accounting does not answer.
    """
    described = dict(_rows("show", "account", "format=Account,Descr"))
    accounts: dict[str, Account] = {}
    members: dict[str, list[str]] = {}
    having: dict[str, list[str]] = {}
    columns = ("Account", "User", "ParentName", *_OF_ACCOUNT)
    # Without what an association has from the one above it.
    words = ("show", "associations", f"cluster={cluster}", "wopl", "withrawqos", f"format={','.join(columns)}")
    for account, user, parent, *values in _rows(*words):
        settings = _settings(dict(zip(_OF_ACCOUNT.values(), values)))
        for each in {*settings.get("QOS", "").split(","), settings.get("DefaultQOS", "")}:
            having.setdefault(each.lstrip("+-"), []).append(f"user {user}" if user else account)
        if user:
            members.setdefault(account, []).append(user)
        elif account != ROOT:
            accounts[account] = Account(parent, {**settings, "Description": described.get(account, "")})
    qos = {
        name: _settings(dict(zip(_OF_QOS.values(), values)))
        for name, *values in _rows("show", "qos", f"format={','.join(['Name', *_OF_QOS])}")
    }
    defaults = dict(_rows("show", "user", "format=User,DefaultAccount"))
    return Accounts(accounts, qos, members), InUse(defaults, having, _jobs())


def sacctmgr(*words: str) -> str:
    """What sacctmgr prints.

    Raises:
        Failed: it refuses, or the accounting does not answer.
    """
    result = programs.call(["sacctmgr", *words], seconds=_SECONDS)
    # "Nothing modified" has status 1 with some releases: the setting is as it should be.
    text = " ".join((result.stderr.strip() or result.stdout).split())
    if result.returncode != 0 and "Nothing" not in text:
        raise Failed(f"`sacctmgr {' '.join(words)}` fails: {text}", "Run: systemctl status slurmdbd")
    return result.stdout


def _rows(*words: str) -> list[list[str]]:
    lines = sacctmgr("--noheader", "--parsable2", *words).splitlines()
    return [line.split("|") for line in lines if line.strip()]


def _settings(row: Mapping[str, str]) -> dict[str, str]:
    """The settings of a row, with a name for each TRES; those without a value are left out."""
    settings: dict[str, str] = {}
    for name, value in row.items():
        if name in _WITH_TRES:
            pairs = (pair.partition("=") for pair in value.split(",") if pair)
            settings.update({f"{name}.{tres}": amount for tres, _, amount in pairs})
        elif value:
            settings[name] = value
    return settings


def _jobs() -> list[tuple[str, str, str]] | None:
    result = programs.call(["squeue", "--all", "--noheader", "-O", "Account:0|,UserName:0|,QOS:0"], seconds=_SECONDS)
    if result.returncode != 0:
        return None
    rows = [line.split("|") for line in result.stdout.splitlines()]
    return [(row[0], row[1], row[2].strip()) for row in rows if len(row) == len(("account", "user", "qos"))]


def _remembered(file: Path) -> Accounts:
    try:
        return Accounts.parse(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, KeyError, TypeError, ValueError, AttributeError):
        # It only tells what may be removed: without it, nothing is.
        return Accounts()


def _remember(file: Path, accounts: Accounts) -> None:
    """Write what the file of the cluster has; nothing, where it has no accounts and none is left."""
    if accounts == Accounts():
        file.unlink(missing_ok=True)
        return
    text = json.dumps(accounts.to_dict(), indent=1) + "\n"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(file, text)
