"""The measurements by jobs as a part of a run of `verify`: their findings, and their outputs as evidence."""

from __future__ import annotations

from gpucluster.lifecycle.verification import Measured
from gpucluster.operations.measuring import FULL, Measuring
from gpucluster.verdict.expectation import Expectation


class JobMeasurement:
    """Measures the permanent nodes of pools by Slurm jobs."""

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring

    def measure(self, expected: Expectation, *, record_baseline: bool) -> Measured:
        """See `verification.Measurement`."""
        raw: dict[str, str] = {}
        keep = raw.__setitem__
        findings = self._measuring.run(expected.pools, FULL, keep=keep, record_baseline=record_baseline)
        return Measured(findings, raw)
