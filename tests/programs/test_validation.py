"""How a report of the suites is read."""

from __future__ import annotations

import pytest

from tests.programs import validation

# As the suites of 0.11.0 write it.
_REPORT = """<?xml version='1.0' encoding='utf-8'?>
<testsuites name="isvctl validation tests">
    <testsuite name="slurm/test" tests="4" failures="1" errors="0" skipped="2" time="14.514">
        <testcase classname="" name="SlurmInfoAvailable" time="0.016" />
        <testcase name="SlurmJobSubmission" time="0.000">
            <skipped type="test_excluded" message="validation 'SlurmJobSubmission' is excluded by name" />
        </testcase>
        <testcase classname="" name="SlurmSbatchWorkload-gpu" time="21.065">
            <skipped type="pytest.skip" message="uv not installed (nvidia-smi passed)" />
        </testcase>
        <testcase classname="" name="SlurmPartition-gpu" time="0.035">
            <failure message="AssertionError: Validation failed: Partition 'gpu' not found">more</failure>
        </testcase>
    </testsuite>
</testsuites>
"""


def test_each_check_that_was_to_run_has_its_outcome() -> None:
    assert validation.outcomes(_REPORT) == {
        "SlurmInfoAvailable": "passed",
        "SlurmSbatchWorkload-gpu": "skipped: uv not installed (nvidia-smi passed)",
        "SlurmPartition-gpu": "failed: AssertionError: Validation failed: Partition 'gpu' not found",
    }


def test_without_a_clone_the_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(validation.CLONE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="names no clone"):
        validation.clone()
