"""Rules of `checks`: the names of checks that are switched off."""

from __future__ import annotations

from gpucluster.agent.checks import registry
from gpucluster.spec.rules.context import RuleContext
from gpucluster.text import did_you_mean

RULES = (
    "`checks.off` names checks of nodes: " + ", ".join(f"`{name}`" for name in sorted(registry.BY_NAME)) + ".",
    "`checks.enabled: true` has an effect only with `slurm.enabled: true`.",
)


def check(context: RuleContext) -> None:
    """Add every name that is no check."""
    for position, name in enumerate(context.section("checks").get("off") or ()):
        if name not in registry.BY_NAME:
            hint = did_you_mean(name, registry.BY_NAME) or f"There are: {', '.join(sorted(registry.BY_NAME))}"
            context.error(("checks", "off", position), f"there is no check {name}", hint)
