"""Rules of `checks`: the names of checks that are switched off."""

from __future__ import annotations

from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.text import did_you_mean

RULES = (
    "`checks.off` names [checks of nodes](checks.md).",
    "`checks.enabled: true` has no effect with `scheduler: none`.",
)


def check(context: RuleContext) -> None:
    """Add every name that is not a check."""
    off = context.section("checks").get("off")
    if not off:
        return
    # It imports the collectors and judges of all checks, which few files name.
    from gpucluster.node_agent.checks import registry

    for position, name in usable(off):
        if name not in registry.BY_NAME:
            hint = did_you_mean(name, registry.BY_NAME) or f"There are: {', '.join(sorted(registry.BY_NAME))}"
            context.error(("checks", "off", position), f"there is no check {name}", hint)
