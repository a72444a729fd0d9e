"""Rules of `maintenance`: what its settings need."""

from __future__ import annotations

from gpucluster.spec.rules.context import RuleContext

RULES = (
    "`maintenance.enabled: true` needs `scheduler: slurm` and `checks.enabled: true`.",
    "`maintenance.early: true` needs `maintenance.enabled`.",
)


def check(context: RuleContext) -> None:
    """Add a setting that could have no effect."""
    section = context.section("maintenance")
    possible = context.data.get("scheduler") == "slurm" and context.section("checks").get("enabled") is not False
    if section.get("enabled") is True and not possible:
        context.error(
            ("maintenance", "enabled"),
            "the service of the checks reserves nodes in Slurm for maintenance, and this cluster lacks one of the two",
            "Delete it, or set scheduler: slurm and checks.enabled: true",
        )
    elif section.get("early") is True and section.get("enabled") is False:
        context.error(
            ("maintenance", "early"),
            "the events of maintenance are not read in this cluster",
            "Set maintenance.enabled: true",
        )
