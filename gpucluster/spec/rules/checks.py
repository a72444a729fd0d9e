"""Rules of `checks`: the names of checks that are switched off, and what a repair and a report of hosts need."""

from __future__ import annotations

from gpucluster.spec.defaults import is_elastic
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.text import did_you_mean

RULES = (
    "`checks.off` names [checks of nodes](checks.md).",
    "`checks.enabled: true` has no effect with `scheduler: none`.",
    "`checks.repair: reboot` needs `scheduler: slurm` and `checks.enabled: true`.",
    "`checks.report_hosts: true` needs an elastic pool and `checks.enabled: true`.",
)


def check(context: RuleContext) -> None:
    """Add every name that is not a check, and what nothing would do."""
    section = context.section("checks")
    possible = context.data.get("scheduler", "slurm") == "slurm" and section.get("enabled") is not False
    if section.get("repair") == "reboot" and not possible:
        context.error(
            ("checks", "repair"),
            "Slurm reboots nodes where the service of the checks asks for it, and this cluster lacks one of the two",
            "Delete it, or set scheduler: slurm and checks.enabled: true",
        )
    elastic = any(map(is_elastic, context.section("pools").values()))
    if section.get("report_hosts") is True and not (elastic and section.get("enabled") is not False):
        context.error(
            ("checks", "report_hosts"),
            "the autoscaler reports hosts of elastic nodes that failed checks, and this cluster has no such nodes",
            "Delete it, or add an elastic pool and set checks.enabled: true",
        )
    off = section.get("off")
    if not off:
        return
    # It imports the collectors and judges of all checks, which few files name.
    from gpucluster.node_agent.checks import registry

    for position, name in usable(off):
        if name not in registry.BY_NAME:
            hint = did_you_mean(name, registry.BY_NAME) or f"There are: {', '.join(sorted(registry.BY_NAME))}"
            context.error(("checks", "off", position), f"there is no check {name}", hint)
