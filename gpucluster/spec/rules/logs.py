"""Rules of `logs`."""

from __future__ import annotations

from gpucluster.spec.document import Path
from gpucluster.spec.rules.context import RuleContext

RULES = (
    "`logs.keep_days` needs `storage.home.enabled: true`: the controller reaches other hosts by what the directory of "
    "users has installed.",
)

_KEEP_DAYS: Path = ("logs", "keep_days")


def check(context: RuleContext) -> None:
    """Add every error of `logs`."""
    keeps = context.section("logs").get("keep_days") or 0
    if keeps and context.section("storage", "home").get("enabled") is False:
        message = "journals are kept only with the home share: without it, the controller does not log in to hosts"
        context.error(_KEEP_DAYS, message, "Delete `logs`, or enable storage.home")
