"""Accounts, QOS and their limits: from the words of cluster.yml to those of sacctmgr.

    accounting(spec)["accounts"]["vision"] == {"parent": "root", "settings": {"GrpTRES.gres/gpu": "64", ...}}

A setting is named as sacctmgr takes it, and a TRES has a name of its own after a dot; its value is written as sacctmgr
prints it, so that both can be compared. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.spec import ClusterSpec
from gpucluster.spec.sections.slurm import AccountSpec, GroupLimits, QosSpec, UserLimits

NORMAL = "normal"
_TRES = {"cpus": "cpu", "gpus": "gres/gpu", "nodes": "node"}
_HOURS = {"cpu_hours": "cpu", "gpu_hours": "gres/gpu"}
_MINUTES = 60


def accounting(spec: ClusterSpec) -> dict[str, Any]:
    """What the role `slurm` gets: QOS and accounts, users of accounts, and which parts of slurm.conf they need.

    Returns:
        `fair_share`, `priorities`, `preempts`: whether slurm.conf needs it; `safe`: whether hours are limited.
    """
    accounts, every_qos = spec.slurm.accounts, spec.slurm.qos
    groups = [*(each.limits for each in accounts.values()), *(each.limits for each in every_qos.values())]
    return {
        "qos": {name: {"settings": _qos(each)} for name, each in every_qos.items()},
        "accounts": {name: {"parent": each.parent, "settings": _account(each)} for name, each in accounts.items()},
        "members": {name: sorted(each.users) for name, each in accounts.items() if each.users},
        "fair_share": any(each.fairshare is not None for each in accounts.values()),
        "priorities": any(each.priority for each in every_qos.values()),
        "preempts": any(each.preempts for each in every_qos.values()),
        "safe": any(limits.cpu_hours is not None or limits.gpu_hours is not None for limits in groups),
    }


def _account(account: AccountSpec) -> dict[str, str]:
    default = account.default_qos or (NORMAL if NORMAL in account.qos else next(iter(account.qos), None))
    return {
        **({"Description": account.description.lower()} if account.description else {}),
        **_number("Fairshare", account.fairshare),
        **_group(account.limits),
        **({"QOS": ",".join(sorted(account.qos)), "DefaultQOS": str(default)} if account.qos else {}),
    }


def _qos(qos: QosSpec) -> dict[str, str]:
    return {
        **({"Description": qos.description.lower()} if qos.description else {}),
        "Priority": str(qos.priority),
        **({"Preempt": ",".join(sorted(qos.preempts))} if qos.preempts else {}),
        "PreemptMode": qos.preempt_mode,
        **_group(qos.limits),
        **_user(qos.user_limits),
    }


def _group(limits: GroupLimits) -> dict[str, str]:
    return {
        **_number("GrpJobs", limits.jobs),
        **_number("GrpSubmitJobs", limits.submitted_jobs),
        **_tres("GrpTRES", limits, _TRES),
        **_tres("GrpTRESMins", limits, _HOURS, _MINUTES),
        **({} if limits.job_hours is None else {"MaxWall": _duration(limits.job_hours)}),
    }


def _user(limits: UserLimits) -> dict[str, str]:
    return {
        **_number("MaxJobsPerUser", limits.jobs),
        **_number("MaxSubmitJobsPerUser", limits.submitted_jobs),
        **_tres("MaxTRESPerUser", limits, _TRES),
    }


def _number(setting: str, value: int | None) -> dict[str, str]:
    return {} if value is None else {setting: str(value)}


def _tres(setting: str, limits: GroupLimits | UserLimits, names: Mapping[str, str], unit: int = 1) -> dict[str, str]:
    values = {tres: getattr(limits, key) for key, tres in names.items()}
    return {f"{setting}.{tres}": str(value * unit) for tres, value in values.items() if value is not None}


def _duration(hours: int) -> str:
    """As sacctmgr prints a time: `1-12:00:00`, `06:00:00`."""
    days, rest = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{rest:02}:00:00"
