"""A look before anything is created: would the cloud do what is wished for?

    report = preflight.examine(spec, cloud, outputs)      # every finding
    preflight.check(spec, cloud, outputs, on_event)       # the same, announced; PreflightError for an error

`look` asks, `judge` decides: facts.py says what lies between them. Nothing here changes anything, there or here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.artifacts import catalogue, releases
from gpucluster.cloud.providers import Cloud
from gpucluster.errors import PreflightError
from gpucluster.errors import PreflightFinding as Finding
from gpucluster.events import Event, Sink
from gpucluster.preflight.collect import look
from gpucluster.preflight.evaluate import judge
from gpucluster.preflight.facts import Facts
from gpucluster.spec import ClusterSpec

__all__ = ["Facts", "Finding", "Report", "check", "examine", "judge", "look"]


@dataclass(frozen=True)
class Report:
    """What a look found: errors first, then warnings, then notes."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Those that stop a run."""
        return self._of("error")

    @property
    def summary(self) -> str:
        """In one line: `2 errors, 1 warning`."""
        counts = {level: len(self._of(level)) for level in ("error", "warning", "note")}
        return ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        status = "failed" if self.errors else "success"
        return {"command": "preflight", "status": status, "findings": [asdict(finding) for finding in self.findings]}

    def _of(self, level: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


def examine(spec: ClusterSpec, cloud: Cloud, outputs: Mapping[str, Any] | None = None) -> Report:
    """Look and judge. The cloud must have been started.

    Args:
        outputs: Terraform's, where something of this cluster stands.

    Raises:
        GpuClusterError: the cloud's configuration itself can't be read.
    """
    wanted = catalogue.wanted_by(spec, hardware_emulated=cloud.hardware_emulated)
    # What hosts can't be given is an error, which comes first as well.
    missing = releases.check(wanted, spec.software.mirror_location)
    return Report((*missing, *judge(spec, look(spec, cloud, outputs))))


def check(spec: ClusterSpec, cloud: Cloud, outputs: Mapping[str, Any] | None, on_event: Sink) -> tuple[Finding, ...]:
    """Look, judge, and announce warnings and notes.

    Raises:
        PreflightError: something would fail; `findings` holds everything that was found.
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
        status = "warning" if finding.level == "warning" else "info"
        words = f"{finding.check}: {finding.reason}" + (f". {finding.action}" if finding.action else "")
        on_event(Event("log", "preflight", status, words, data=asdict(finding)))
    return report.findings
