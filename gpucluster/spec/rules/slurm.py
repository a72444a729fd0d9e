"""Rules of `slurm`: with Slurm and without a scheduler, the default partition, additional lines of slurm.conf."""

from __future__ import annotations

import re
from typing import Any

from gpucluster.slurm import config_keys, releases
from gpucluster.spec.defaults import is_elastic, systems_of
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.model import ClusterSpec
from gpucluster.spec.reserved import OWNED_SLURM_KEYS, TUNABLE_SLURM_KEYS
from gpucluster.spec.rules import slurm_rest
from gpucluster.spec.rules.context import RuleContext
from gpucluster.text import did_you_mean

# After a space Slurm reads the next key of the line, which may be one that gpucluster sets itself.
_CONFIG_VALUE = re.compile(r'[^\s"#\\]+|"[^"#\\]+"')

RULES = (
    "`scheduler: slurm` needs `storage.home.enabled: true`. With `scheduler: none` no pool is elastic.",
    "`slurm.release: distribution` needs hosts of one system, whose own Slurm is "
    f"{releases.OLDEST} or later: neither Ubuntu 22.04 nor Oracle Linux 8.",
    f"`slurm.rest` needs Slurm {releases.OLDEST_WITH_REST} or later on the controller. `slurm.rest_certificate_file` "
    "and `slurm.rest_key_file` belong together: a certificate and its key, in PEM, without a passphrase.",
    "At most one pool has `default: true`, and `slurm.default_partition` does not contradict it.",
    "`slurm.default_job_hours` is at most `slurm.max_job_hours`. `slurm.user_limits` needs `slurm.accounting: true`.",
    "`slurm.extra_config` refuses these keys, which gpucluster sets itself: "
    + ", ".join(f"`{key}`" for key in sorted(OWNED_SLURM_KEYS))
    + ". Keys that gpucluster sets by default have its spelling, and none occurs twice: Slurm ignores case. Where "
    "Slurm reads a number, or YES or NO, the value is one.",
)


def check(context: RuleContext) -> None:
    """Add every error of `slurm`, and of a cluster without a scheduler."""
    slurm = context.section("slurm")
    scheduler = context.data.get("scheduler")
    if scheduler == "slurm" and context.section("storage", "home").get("enabled") is False:
        message = "Slurm jobs need it: they expect their files on every node"
        context.error(("storage", "home", "enabled"), message, "Write true, or `scheduler: none`")
    if scheduler == "none":
        for name, pool in context.section("pools").items():
            if is_elastic(pool):
                message = "elastic nodes need Slurm, whose jobs request them"
                context.error(
                    ("pools", name, "max_count"), message, "Set max_count to count, or write `scheduler: slurm`"
                )
    _check_release(context, slurm)
    slurm_rest.check(context, slurm)
    _check_default_partition(context, slurm.get("default_partition"))
    _check_limits(context, slurm)
    first: dict[str, str] = {}
    for key, value in (slurm.get("extra_config") or {}).items():
        _check_extra_config(context, key, value)
        _check_spelling(context, key, first.setdefault(key.casefold(), key))


def warnings(spec: ClusterSpec) -> tuple[str, ...]:
    """Keys of `slurm.extra_config` that no list has, with the one that was probably meant: one sentence for each."""
    known = {key.casefold() for key in config_keys.KNOWN}
    unknown = [key for key in spec.slurm.extra_config if key.casefold() not in known] if spec.slurm.enabled else []
    return tuple(
        f"slurm.extra_config.{key}: gpucluster knows no such key of slurm.conf. "
        + (did_you_mean(key, config_keys.KNOWN - OWNED_SLURM_KEYS, most=1) or "Is it one of your release of Slurm?")
        + " slurmctld refuses a key that it does not know; where it runs already, apply lets it try the file before "
        "anything is changed"
        for key in unknown
    )


def _check_release(context: RuleContext, slurm: dict[str, Any]) -> None:
    if (
        context.data.get("scheduler") != "slurm"
        or slurm.get("release") != releases.DISTRIBUTION
        or context.provider is None
    ):
        return
    refused = releases.too_different(systems_of(context.data, context.provider))
    if refused:
        context.error(("slurm", "release"), refused, f'Write a release for all hosts: release: "{releases.NEWEST}"')


def _check_limits(context: RuleContext, slurm: dict[str, Any]) -> None:
    default, most = slurm.get("default_job_hours"), slurm.get("max_job_hours")
    if isinstance(default, int) and isinstance(most, int) and default > most:
        message = f"{default} is above slurm.max_job_hours, {most}: no job could use it"
        context.error(("slurm", "default_job_hours"), message, "Write at most that number, or null")
    limits = slurm.get("user_limits")
    has_limits = isinstance(limits, dict) and any(value is not None for value in limits.values())
    if has_limits and slurm.get("accounting") is False:
        context.error(("slurm", "user_limits"), "Slurm knows limits by its accounting", "Set slurm.accounting to true")


def _check_default_partition(context: RuleContext, name: Any) -> None:
    path: Path = ("slurm", "default_partition")
    pools = {other: pool for other, pool in context.section("pools").items() if isinstance(pool, dict)}
    if not context.written(path) or not isinstance(name, str) or not context.section("pools"):
        return
    others = [other for other, pool in pools.items() if pool.get("default") is True]
    partitions = list(dict.fromkeys(str(pool.get("partition")) for pool in pools.values()))
    if name not in partitions:
        hint = did_you_mean(name, partitions) or f"Partitions: {', '.join(partitions)}"
        if name in pools:
            hint = f"The pool of that name is in the partition {pools[name].get('partition')}"
        context.error(path, f"there is no partition {shown(name)}", hint)
    elif others and name not in [pools[other].get("partition") for other in others]:
        context.error(path, f"the pool {others[0]} is already the default", "Set it in one place")


def _check_extra_config(context: RuleContext, key: str, value: Any) -> None:
    path: Path = ("slurm", "extra_config", key)
    owned = {own.casefold(): own for own in OWNED_SLURM_KEYS}
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key):
        context.error(path, f"is not a key of slurm.conf: {shown(key)}", key=True)
    elif key.casefold() in owned:
        message = f"{owned[key.casefold()]} is set by gpucluster itself"
        context.error(path, message, "Delete the line; most of it follows from other keys of this file", key=True)
    elif value is None:
        context.error(path, "has no value", "Write one, or delete the line")
    elif isinstance(value, (tuple, list)):
        context.error(path, "must be text or a whole number; got a list", 'Write one text with commas, such as "a,b"')
    elif isinstance(value, bool) or not isinstance(value, (str, int)):
        message = f"must be text or a whole number; got {shown(value)}"
        context.error(path, message, 'Write it in quotes, such as "YES"')
    elif isinstance(value, str) and not (value.isprintable() and _CONFIG_VALUE.fullmatch(value)):
        message = f"is not a valid value in slurm.conf: {shown(value)}"
        hint = "Write one line, without # and backslash. One with spaces needs double quotes in it: '\"a b\"'"
        context.error(path, message, hint)
    elif correction := config_keys.refused(key, str(value)):
        context.error(path, f"is not a value that Slurm takes: {shown(value)}", f"Write {correction}")


def _check_spelling(context: RuleContext, key: str, first: str) -> None:
    """A key of another case would be a second line of slurm.conf, and replace a list that it may only add to."""
    path: Path = ("slurm", "extra_config", key)
    ours = next((own for own in TUNABLE_SLURM_KEYS if own.casefold() == key.casefold()), key)
    if ours != key:
        context.error(path, "gpucluster sets this key, too, in another spelling", f"Write {ours}", key=True)
    elif first != key:
        message = f"is the same key as {first}: Slurm ignores case"
        context.error(path, message, "Delete one of them", key=True)
