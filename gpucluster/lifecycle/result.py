"""How a run ended, as the library returns it and the command line prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.verdict.repair import RepairPlan
from gpucluster.verdict.verdict import CheckResult, Verdict
from gpucluster.workspace.run_log import RunStatus


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Args:
        phases: seconds by phase, in order; `roles`: seconds by Ansible role.
        changes: how many resources were changed; `resources`: the same by the action (create, update, replace, delete).
        changed: changed tasks by host.
        verdict: what the checks found; None if the command has none.
        repair: what was done with nodes that failed; None without `verify --fix`.
        login: by user, the command line with which they log in.
        slurm_copy: the folder on the controller that has what Slurm had stored before an upgrade; None without one.
        backup: the file of the backup that an upgrade of Kubernetes has written before; None without one.
    """

    command: str
    status: RunStatus
    elapsed: float
    phases: Mapping[str, float]
    roles: Mapping[str, float] = field(default_factory=dict)
    changes: int = 0
    resources: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    repair: RepairPlan | None = None
    login: Mapping[str, str] = field(default_factory=dict)
    slurm_copy: str | None = None
    backup: str | None = None

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """The result of each check for each host, node, pool, or the cluster."""
        return self.verdict.results if self.verdict else ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "command": self.command,
            "status": self.status,
            "elapsed": round(self.elapsed, 2),
            "phases": {name: round(seconds, 2) for name, seconds in self.phases.items()},
            "roles": {name: round(seconds, 2) for name, seconds in self.roles.items()},
            "changes": self.changes,
            "resources": dict(self.resources),
            "changed": dict(self.changed),
            "checks": [check.to_dict() for check in self.checks],
            **({"verdict": self.verdict.to_dict()} if self.verdict else {}),
            **({"repair": self.repair.to_dict()} if self.repair else {}),
            "login": dict(self.login),
            **({"slurm_copy": self.slurm_copy} if self.slurm_copy else {}),
            **({"backup": self.backup} if self.backup else {}),
        }
