"""What srun prints where its job ended for a cause outside of the program that it started. Pure.

All of these can be the last words, by the moment: before the allocation is ready, between it and the step, or in the
middle of the step. Source: Slurm's `src/srun/allocate.c`, `src/srun/launch.c` and `src/slurmd/slurmstepd/req.c`.
"""

from __future__ import annotations

import re
from enum import Enum


class End(Enum):
    """Why a job ended."""

    NODE_FAILED = "a node failed"
    #: By a node that failed, by a user, or by a job that goes before it: srun does not print which.
    REVOKED = "Slurm ended its allocation: a node failed, or the job was cancelled"
    TIME_OVER = "its time limit was over"
    NO_STEP = "Slurm started no program in its allocation"


#: The first that is found counts: a revoked allocation of a node that failed is one of a node that failed.
_WORDS = (
    (End.NODE_FAILED, r"Node failure on |DUE TO NODE FAILURE|Job killed due node failure"),
    (End.TIME_OVER, r"DUE TO TIME LIMIT|Job killed due hitting max wall clock limit"),
    (End.REVOKED, r"Job allocation \d+ has been revoked|DUE TO (?:PREEMPTION|JOB REQUEUE)"),
    (End.REVOKED, r"Unable to create step for job \d+: Job/step already completing or completed"),
    (End.REVOKED, r"Unable to confirm allocation for job \d+: |Slurm job \d+ has expired"),
    (End.NO_STEP, r"Unable to create step for job \d+: "),
)
_PATTERNS = tuple((end, re.compile(words)) for end, words in _WORDS)

#: The same, of the state that Slurm keeps for some minutes after the end.
OF_STATE = {
    "NODE_FAIL": End.NODE_FAILED, "CANCELLED": End.REVOKED, "PREEMPTED": End.REVOKED, "REVOKED": End.REVOKED,
    "TIMEOUT": End.TIME_OVER, "DEADLINE": End.TIME_OVER, "BOOT_FAIL": End.NO_STEP, "LAUNCH_FAILED": End.NO_STEP,
    "RECONFIG_FAIL": End.NO_STEP,
}  # fmt: skip


def end(output: str) -> End | None:
    """Why the job ended, or None where srun prints nothing of it: the program ended by itself.

    Args:
        output: the last lines of srun, and of the program.
    """
    return next((each for each, words in _PATTERNS if words.search(output)), None)
