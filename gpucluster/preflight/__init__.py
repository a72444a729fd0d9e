"""Preflight: checks in advance whether the cloud would accept a cluster. Nothing is created.

    report = preflight.examine(spec, cloud, outputs)      # every finding
    preflight.check(spec, cloud, outputs, on_event)       # the same, as events; PreflightError for an error

`collect` reads facts (facts.py) with `queries/`, `evaluate` turns them into findings with `checks/`. Nothing here
changes anything, neither in the cloud nor on this machine. May import `handover`, `cloud` and what is below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.artifacts import releases
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import PreflightError
from gpucluster.errors import PreflightFinding as Finding
from gpucluster.events import Event, EventKind, LogLevel, Sink
from gpucluster.preflight.collect import collect
from gpucluster.preflight.evaluate import evaluate
from gpucluster.preflight.facts import Facts
from gpucluster.spec import ClusterSpec
from gpucluster.text import count

__all__ = ["Facts", "Finding", "PreflightReport", "check", "collect", "evaluate", "examine"]


@dataclass(frozen=True)
class PreflightReport:
    """The findings: errors first, then warnings, then notes."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a run."""
        return self._of("error")

    @property
    def summary(self) -> str:
        """The numbers of findings in one line: `2 errors, 1 warning`."""
        numbers = {level: len(self._of(level)) for level in ("error", "warning", "note")}
        return ", ".join(count(number, level) for level, number in numbers.items() if number)

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        status = "failed" if self.errors else "success"
        return {"command": "preflight", "status": status, "findings": [asdict(finding) for finding in self.findings]}

    def _of(self, level: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


def examine(spec: ClusterSpec, cloud: CloudProvider, outputs: Mapping[str, Any] | None = None) -> PreflightReport:
    """Collect the facts and evaluate them. The cloud must have been started.

    Args:
        outputs: Terraform's outputs, if a part of this cluster exists.

    Raises:
        GpuClusterError: the cloud's configuration can't be read.
    """
    needed = releases.needed_by(spec, hardware_emulated=cloud.hardware_emulated)
    # A missing release file is an error, and errors come first.
    missing = releases.check(needed, spec.software.mirror_location)
    return PreflightReport((*missing, *evaluate(spec, collect(spec, cloud, outputs))))


def check(
    spec: ClusterSpec, cloud: CloudProvider, outputs: Mapping[str, Any] | None, on_event: Sink
) -> tuple[Finding, ...]:
    """Examine, and announce warnings and notes.

    Raises:
        PreflightError: something would fail; `findings` has all findings.
    """
    report = examine(spec, cloud, outputs)
    if report.errors:
        raise PreflightError(
            f"this would fail: {report.summary}",
            where=str(spec.file),
            hint="Nothing was created",
            findings=report.findings,
        )
    for finding in report.findings:
        status = LogLevel.WARNING if finding.level == "warning" else LogLevel.INFO
        message = f"{finding.check}: {finding.reason}" + (f". {finding.action}" if finding.action else "")
        on_event(Event(EventKind.LOG, "preflight", status, message, data=asdict(finding)))
    return report.findings
