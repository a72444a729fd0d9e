"""Rules of `checks`: the names of checks that are switched off, and what a repair needs."""

from __future__ import annotations

from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.text import did_you_mean

RULES = (
    "`checks.off` names [checks of nodes](checks.md).",
    "`checks.enabled: true` has no effect with `scheduler: none`.",
    "`checks.repair: reboot` needs `scheduler: slurm` and `checks.enabled: true`.",
)


def check(context: RuleContext) -> None:
    """Add every name that is not a check, and a repair that nothing would do."""
    section = context.section("checks")
    possible = context.data.get("scheduler", "slurm") == "slurm" and section.get("enabled") is not False
    if section.get("repair") == "reboot" and not possible:
        context.error(
            ("checks", "repair"),
            "Slurm reboots nodes where the service of the checks asks for it, and this cluster lacks one of the two",
            "Delete it, or set scheduler: slurm and checks.enabled: true",
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
