"""What states of Slurm's jobs mean for programs on the hosts, which can't use `gpucluster.slurm`."""

from __future__ import annotations

#: The job waits for nodes, or for its nodes to be ready: no program of it runs yet.
WAITING = frozenset({"PENDING", "CONFIGURING"})

#: The job has ended, and its state does not change any more.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
