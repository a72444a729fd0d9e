"""The words of srun at the end of a job: which of them mean that it was not its program that ended."""

from __future__ import annotations

import pytest

from gpucluster.controller.rules import srun_messages
from gpucluster.controller.rules.srun_messages import End


@pytest.mark.parametrize(
    ("said", "end"),
    [
        # Recorded: a node was set down between the allocation and the step, and then in the middle of the step.
        ("srun: error: Unable to create step for job 28: Job/step already completing or completed", End.REVOKED),
        ("srun: error: Node failure on gpu-4\nsrun: error: gpu-4: task 0: Killed", End.NODE_FAILED),
        # From Slurm's format strings.
        ("slurmstepd: error: *** STEP 7.0 ON gpu-4 CANCELLED AT 2026-11-27T05:20:11 DUE TO NODE FAILURE, SEE SLURMCTLD "
         "LOG FOR DETAILS ***", End.NODE_FAILED),
        ("srun: Job allocation 7 has been revoked\nsrun: error: Node failure on gpu-4", End.NODE_FAILED),
        ("srun: error: Job allocation 7 has been revoked", End.REVOKED),
        ("slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-27T05:20:11 DUE TO PREEMPTION ***", End.REVOKED),
        ("srun: error: Unable to confirm allocation for job 7: Invalid job id specified", End.REVOKED),
        ("srun: error: Unable to create step for job 7: Required node not available (down, drained or reserved)",
         End.NO_STEP),
        ("srun: error: Unable to create step for job 7: Unable to contact slurm controller (connect failure)",
         End.NO_STEP),
        ("slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-27T05:20:11 DUE TO TIME LIMIT ***", End.TIME_OVER),
        # The program's own end.
        ("srun: error: gpu-3: task 0: Exited with exit code 3", None),
        ("slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-27T05:20:11 DUE TO TASK FAILURE ***", None),
        ("srun: error: Unable to allocate resources: Requested node configuration is not available", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_words_of_srun_tell_why_a_job_ended(said: str, end: End | None) -> None:
    assert srun_messages.end(said) is end
