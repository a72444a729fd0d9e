"""The table of all checks for the documentation."""

from __future__ import annotations

from typing import Any

from gpucluster.node_agent.checks.model import Check, Profile
from gpucluster.verdict.registry import CLUSTER_CHECKS, HOST_CHECKS, MEASURED_CHECKS
from gpucluster.verdict.verdict import title_of

_HEADER = "| check | what | scope | profiles | on failure | time limit | what to do |\n|---|---|---|---|---|---|---|"
_SECTIONS = (
    ("Judged by the operator's machine", CLUSTER_CHECKS),
    ("Judged by each host itself", HOST_CHECKS),
    ("Measured by jobs at level full", MEASURED_CHECKS),
)


def tables() -> str:
    """One table for each place where checks are judged."""
    parts = [f"## {title}\n\n{_HEADER}\n" + "\n".join(map(_row, checks)) for title, checks in _SECTIONS if checks]
    return "\n\n".join(parts)


def _row(check: Check[Any]) -> str:
    profiles = ", ".join(profile.value for profile in Profile if profile in check.profiles)
    cells = (
        f"`{check.name}`",
        title_of(check, "POOL"),
        check.scope.value,
        profiles,
        check.reaction.value,
        f"{check.timeout_s:g} s",
        check.remedy,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
