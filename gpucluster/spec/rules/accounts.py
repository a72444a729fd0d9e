"""Rules of `slurm.accounts` and `slurm.qos`: names, parents, and which QOS an account has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.model import ClusterSpec
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.sections import fields
from gpucluster.text import did_you_mean

#: The root of all accounts, and the QOS of jobs that ask for none; both belong to Slurm.
ROOT, NORMAL = "root", "normal"

RULES = (
    "Names of `slurm.accounts` and `slurm.qos` have at most 40 lower-case letters, digits, `_` and `-`. The account "
    "`root` and the QOS `normal` are Slurm's own. Both sections need `slurm.accounting: true`.",
    "The `parent` of an account is another one of the file, or `root`, and no account is above itself. Its `qos` are "
    "of `slurm.qos`, or `normal`; its `default_qos` is one of them.",
)


def check(context: RuleContext) -> None:
    """Add every error of `slurm.accounts` and `slurm.qos`."""
    slurm = context.section("slurm")
    accounts, qos = context.section("slurm", "accounts"), context.section("slurm", "qos")
    if slurm.get("accounting") is False:
        for name in [name for name in ("accounts", "qos") if slurm.get(name)]:
            message = "Slurm stores it in its accounting"
            context.error(("slurm", name), message, "Set slurm.accounting to true", key=True)
    for section, reserved in (("accounts", ROOT), ("qos", NORMAL)):
        for name in context.section("slurm", section):
            _check_name(context, ("slurm", section, name), name, reserved)
    for name, account in accounts.items():
        if isinstance(account, dict) and name != ROOT:
            _check_account(context, name, accounts)
    for name, each in qos.items():
        for index, other in usable(each.get("preempts") if isinstance(each, dict) else None):
            path: Path = ("slurm", "qos", name, "preempts", index)
            if other == name:
                context.error(path, "is this QOS itself", "Name others")
            else:
                _check_qos(context, path, other)


def warnings(spec: ClusterSpec) -> tuple[str, ...]:
    """Budgets that hold nothing."""
    budgets = [name for name, each in spec.slurm.accounts.items() if each.monthly_budget is not None]
    if not budgets or spec.elastic_pools:
        return ()
    key = ", ".join(f"slurm.accounts.{name}.monthly_budget" for name in budgets)
    return (f"{key}: a budget holds new elastic nodes, and no pool is elastic. gpucluster cost shows what is spent",)


def _check_name(context: RuleContext, path: Path, name: str, reserved: str) -> None:
    if not re.fullmatch(fields.SLURM_CLUSTER_PATTERN, name):
        message = (
            f"a name has at most 40 lower-case letters, digits, _ and -, and begins with a letter; got {shown(name)}"
        )
        context.error(path, message, key=True)
    elif name == reserved:
        hint = "Write slurm.user_limits for its limits" if name == NORMAL else "Choose another"
        context.error(path, f"the name {name} is Slurm's own", hint, key=True)


def _check_account(context: RuleContext, name: str, accounts: Mapping[str, Any]) -> None:
    account, path = accounts[name], ("slurm", "accounts", name)
    parent = account.get("parent")
    if isinstance(parent, str) and parent != ROOT and parent not in accounts:
        hint = did_you_mean(parent, accounts) or "Add it to slurm.accounts, or write root"
        context.error((*path, "parent"), f"there is no account {shown(parent)}", hint)
    elif _is_above_itself(name, accounts):
        context.error((*path, "parent"), f"the account {name} is above itself", "Write root for one of them")
    qos = [each for _, each in usable(account.get("qos"))]
    for index, each in usable(account.get("qos")):
        _check_qos(context, (*path, "qos", index), each)
    default = account.get("default_qos")
    if isinstance(default, str) and default not in qos:
        context.error((*path, "default_qos"), f"{default} is not in qos", f"Write qos: [{default}, ...] as well")
    for index, user in usable(account.get("users")):
        if list(account["users"]).index(user) != index:
            context.error((*path, "users", index), f"{user} occurs twice", "Each may occur once")


def _check_qos(context: RuleContext, path: Path, name: Any) -> None:
    known = [NORMAL, *context.section("slurm", "qos")]
    if isinstance(name, str) and name not in known:
        hint = did_you_mean(name, known) or "Add it to slurm.qos"
        context.error(path, f"there is no QOS {shown(name)}", hint)


def _is_above_itself(name: str, accounts: Mapping[str, Any]) -> bool:
    seen, current = {name}, name
    while isinstance(account := accounts.get(current), dict):
        parent = account.get("parent")
        if parent == name:
            return True
        if not isinstance(parent, str) or parent in seen:
            return False
        seen.add(parent)
        current = parent
    return False
