"""Rules of `monitoring`: its host, what follows a hang, and the configuration of Alertmanager."""

from __future__ import annotations

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields

RULES = (
    "The other keys of `monitoring` have an effect only with `monitoring.enabled: true`.",
    "`monitoring.host` is the controller or a login node that `login.count` has.",
    "Each name in `monitoring.on_hang_by_partition` is a partition of `pools`.",
    "`monitoring.on_hang`, `monitoring.hang_stacks` and `monitoring.end_idle_jobs_minutes` need "
    "`checks.enabled: true`: its service does it.",
    "`monitoring.end_idle_jobs_minutes` is not less than `monitoring.idle_minutes`.",
    "`monitoring.alertmanager_file` is a file of at most 1 MiB that you can read. The controller checks its content.",
)

_HOST: Path = ("monitoring", "host")
_FILE: Path = ("monitoring", "alertmanager_file")
_BY_PARTITION = "on_hang_by_partition"
_END_KEY = "end_idle_jobs_minutes"
_END: Path = ("monitoring", _END_KEY)
_MAX_BYTES = 1024 * 1024


def check(context: RuleContext) -> None:
    """Add every error of `monitoring`. The content of Alertmanager's file is never part of a message."""
    _check_host(context)
    _check_reactions(context)
    _check_alertmanager(context)


def _check_reactions(context: RuleContext) -> None:
    monitoring = context.section("monitoring")
    idle, end, by_partition = (monitoring.get(key) for key in ("idle_minutes", _END_KEY, _BY_PARTITION))
    if isinstance(idle, int) and isinstance(end, int) and end < idle:
        context.error(_END, f"{end} is less than monitoring.idle_minutes, which is {idle}", f"Write {idle} or more")
    pools = context.section("pools")
    known = {pool.get("partition") or name for name, pool in pools.items() if isinstance(pool, dict)}
    for name in by_partition if isinstance(by_partition, dict) else ():
        if name not in known:
            hint = f"Known are: {', '.join(sorted(known))}" if known else "There is no pool"
            context.error(("monitoring", _BY_PARTITION, name), f"there is no partition {shown(name)}", hint, key=True)
    if context.section("checks").get("enabled") is False:
        is_set = {
            "on_hang": monitoring.get("on_hang") not in ("tell", None),
            _BY_PARTITION: bool(by_partition),
            _END_KEY: end is not None,
            "hang_stacks": monitoring.get("hang_stacks") is True,
        }
        for key in [key for key, is_wanted in is_set.items() if is_wanted]:
            context.error(
                ("monitoring", key), "the health service does this, and checks.enabled is false", "Set checks.enabled"
            )


def _check_host(context: RuleContext) -> None:
    host, count = context.section("monitoring").get("host"), context.section("login").get("count")
    if not isinstance(host, str) or not isinstance(count, int):
        return
    _, _, number = host.partition("login-")
    if number and int(number) > count:
        has = f"login.count is {count}" if count else "this cluster has no login nodes"
        hint = f"Write controller or {'login-1' if count == 1 else f'login-1 to login-{count}'}" if count else (
            "Write host: controller, or set login.count"
        )  # fmt: skip
        context.error(_HOST, f"there is no login node {number}: {has}", hint)


def _check_alertmanager(context: RuleContext) -> None:
    name = context.section("monitoring").get("alertmanager_file")
    if not isinstance(name, str):
        return
    try:
        with fields.located(name, context.directory).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError):
        hint = "File names are relative to this file. docs/how-to/monitoring.md has an example"
        context.error(_FILE, f"there is no file {shown(name)} that can be read", hint)
        return
    if not content.strip():
        context.error(_FILE, f"{shown(name)} is empty", "docs/how-to/monitoring.md has an example")
    elif len(content) > _MAX_BYTES:
        context.error(_FILE, f"{shown(name)} has more than 1 MiB", "Name the configuration file of Alertmanager")
