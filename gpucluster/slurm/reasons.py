"""The origin of a node's Reason: gpucluster, slurmctld, or an administrator (or a health check).

gpucluster removes only its own reasons. The reason of an administrator is a decision that gpucluster does not overrule.
"""

from __future__ import annotations

#: The beginning of every reason that gpucluster gives.
PREFIX = "gpucluster:"
#: The reason of a node that cluster.yml no longer has.
REMOVED = f"{PREFIX} removed from cluster.yml"
#: The reason of a node that apply replaces or reboots.
CHANGED = f"{PREFIX} changed by apply"
#: The beginning of the reason of a node that failed checks, and of one that failed them again: a person decides on it.
FAILED_CHECKS = f"{PREFIX} check failed:"
FOR_A_PERSON = f"{PREFIX} check failed again, a person decides:"
# What slurmctld itself writes when it gives a node up (Slurm 22.05 and 24.11).
_SLURMCTLD = ("ResumeTimeout", "Not responding", "Node unexpectedly rebooted", "NO NETWORK ADDRESS FOUND")


def from_slurmctld(reason: str) -> bool:
    """Whether slurmctld gave the reason. It keeps an old one before its own: `loud fan : Not responding` (24.11)."""
    return reason.rpartition(" : ")[2].startswith(_SLURMCTLD)


def from_gpucluster(reason: str) -> bool:
    """Whether gpucluster gave the reason, and slurmctld has added nothing."""
    return reason.startswith(PREFIX) and not from_slurmctld(reason)


def drained_by_apply(reason: str) -> bool:
    """Whether apply drained the node. Slurmctld may have added its own reason when the node was rebooted."""
    return reason.partition(" : ")[0] in (REMOVED, CHANGED)


def from_administrator(reason: str) -> bool:
    """Whether an administrator or a health check gave the reason."""
    return bool(reason) and not reason.startswith(PREFIX) and not from_slurmctld(reason)
