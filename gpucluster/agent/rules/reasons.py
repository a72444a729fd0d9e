"""The origin of a node's Reason: gpucluster, slurmctld, or an administrator (or another health check).

gpucluster removes only its own reasons. The reason of an administrator is a decision that gpucluster does not overrule.
"""

from __future__ import annotations

from collections.abc import Iterable

#: The beginning of every reason that gpucluster gives.
PREFIX = "gpucluster:"
#: The reason of a node that cluster.yml no longer has.
REMOVED = f"{PREFIX} removed from cluster.yml"
#: The reason of a node that apply replaces or reboots.
CHANGED = f"{PREFIX} changed by apply"
#: The reason of a node that waits for its new release in an upgrade of Kubernetes, which lets it into service again.
UPGRADED = f"{PREFIX} upgrade of Kubernetes"
#: The beginning of the reason of a node that failed checks, and of one that failed them again: a person decides on it.
FAILED_CHECKS = f"{PREFIX} check failed:"
FOR_A_PERSON = f"{PREFIX} check failed again, a person decides:"
#: Characters of a reason. Slurm has no limit, but a longer text is not read.
LONGEST = 400
# What slurmctld itself writes when it gives a node up (Slurm 22.05 and 24.11).
_SLURMCTLD = ("ResumeTimeout", "Not responding", "Node unexpectedly rebooted", "NO NETWORK ADDRESS FOUND")


def from_slurmctld(reason: str) -> bool:
    """Whether slurmctld gave the reason. It keeps an old one before its own: `loud fan : Not responding` (24.11)."""
    return reason.rpartition(" : ")[2].startswith(_SLURMCTLD)


def from_gpucluster(reason: str) -> bool:
    """Whether gpucluster gave the reason, decides on the node, and slurmctld has added nothing."""
    return reason.startswith(PREFIX) and not reason.startswith(FOR_A_PERSON) and not from_slurmctld(reason)


def drained_by_apply(reason: str) -> bool:
    """Whether apply drained the node. Slurmctld may have added its own reason when the node was rebooted."""
    return reason.partition(" : ")[0] in (REMOVED, CHANGED)


def drained_by_checks(reason: str) -> bool:
    """Whether failed checks drained the node, and who decides on it now does not matter."""
    return reason.startswith((FAILED_CHECKS, FOR_A_PERSON))


def from_administrator(reason: str) -> bool:
    """Whether an administrator or another health check gave the reason, or a person has to decide on the node."""
    theirs = bool(reason) and not reason.startswith(PREFIX) and not from_slurmctld(reason)
    return theirs or reason.startswith(FOR_A_PERSON)


def of_checks(checks: Iterable[tuple[str, str]], *, again: bool) -> str:
    """The reason of a node that failed checks.

    Args:
        checks: the name of each, and what was seen.
        again: it has failed before, so that a person decides on it.
    """
    names: dict[str, list[str]] = {}
    for check, message in checks:
        names.setdefault(message, []).append(check)
    # Where a tool refuses to answer, all checks that need it have the same message.
    seen = "; ".join(f"{', '.join(those)}: {message}" for message, those in names.items())
    return storable(f"{FOR_A_PERSON if again else FAILED_CHECKS} {seen}")


def first_check(reason: str) -> str:
    """The first check in a reason of `of_checks`; empty in any other reason."""
    for beginning in (FOR_A_PERSON, FAILED_CHECKS):
        if reason.startswith(beginning):
            return reason[len(beginning) :].partition(":")[0].partition(",")[0].strip()
    return ""


def storable(words: str) -> str:
    """A text that Slurm can store and print: one line, no quotes, not too long."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())
    line = line.replace('"', "'").replace("\\", "/").replace("|", "/")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
