"""The origin of a node's Reason: gpucluster, Slurm itself, or an administrator (or another health check).

gpucluster removes only its own reasons. The reason of an administrator is a decision that gpucluster does not overrule.
Slurm's own reasons mean that something is wrong with the node: an elastic one is replaced.

Who wrote a reason decides: what the user `slurm` wrote is slurmctld's. slurmd writes as root, as an administrator with
sudo does; there the words decide, and words that are not known are an administrator's.
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
#: The reason of a node that gets another image in a rollout, which lets it into service again.
ROLLED = f"{PREFIX} rollout of an image"
#: The beginning of the reason of a node whose physical host was found bad: no jobs until all checks have passed.
RETURNED = f"{PREFIX} its physical host was found bad:"
#: The beginning of the reason of a node that failed checks, and of one that failed them again: a person decides on it.
FAILED_CHECKS = f"{PREFIX} check failed:"
FOR_A_PERSON = f"{PREFIX} check failed again, a person decides:"
#: The beginning of the reason of a node that failed checks which a reboot may fix: it is tried before a replacement.
REBOOT_FIRST = f"{PREFIX} check failed, reboot first:"
#: What slurmd writes when it could not end a process of a job. It stands for a check in our reason.
KILL_TASK_FAILED = "Kill task failed"
#: What slurmctld adds where a node did not boot within ResumeTimeout (22.05 to 26.05).
_REBOOT_TIMED_OUT = "reboot timed out"
#: Characters of a reason. Slurm has no limit, but a longer text is not read.
LONGEST = 400
#: The user of slurmctld: `SlurmUser` in slurm.conf.
SLURM_USER = "slurm"
# What slurmctld and slurmd write themselves. Source: Slurm 24.11.5 (slurmctld's node_mgr.c, job_mgr.c, agent.c,
# proc_req.c, ping_nodes.c, power_save.c, read_config.c; slurmd's cred_context.c, mgr.c), and reports of 22.05 to 25.11.
_SLURM = (
    "Bad core count",
    "Cannot collect energy data",
    "CoreSpec differ",
    "Could not unpack gres data",
    "Duplicate jobid",
    "Epilog error",
    "Job env setup error",
    KILL_TASK_FAILED,
    "Low CPUs",
    "Low RealMemory",
    "Low TmpDisk",
    "Low socket*core*thread count",
    "NO NETWORK ADDRESS FOUND",
    "Node unexpectedly rebooted",
    "Not responding",
    "Prolog error",
    "Prolog/Epilog failure",
    "ResumeTimeout",
    "SlurmdSpoolDir is full",
    "batch job complete failure",
    "gres/",
    _REBOOT_TIMED_OUT,
    "switch_g_job_postfini failed",
)
# An administrator has asked for a reboot (`scontrol reboot ASAP`), and slurmctld reports how far it is.
_REBOOT = ("reboot requested", "reboot issued", "reboot complete", "Reboot ASAP")


def from_slurm(reason: str, user: str = "") -> bool:
    """Whether Slurm itself gave the reason.

    slurmctld keeps an old one before its own: `loud fan : Not responding` (24.11).

    Args:
        user: who wrote it, empty where that is not known.
    """
    last = reason.rpartition(" : ")[2]
    if last.startswith(_SLURM):
        return True
    return user == SLURM_USER and bool(last) and not reason.startswith(PREFIX) and not last.startswith(_REBOOT)


def from_gpucluster(reason: str, user: str = "") -> bool:
    """Whether gpucluster gave the reason, decides on the node, and slurmctld has added nothing."""
    return reason.startswith(PREFIX) and not reason.startswith(FOR_A_PERSON) and not from_slurm(reason, user)


def drained_by_apply(reason: str) -> bool:
    """Whether apply drained the node. Slurmctld may have added its own reason when the node was rebooted."""
    return reason.partition(" : ")[0] in (REMOVED, CHANGED)


def drained_by_rollout(reason: str) -> bool:
    """Whether a rollout drained the node. Slurmctld may have added its own reason when the node booted."""
    return reason.partition(" : ")[0] == ROLLED


def drained_for_its_host(reason: str) -> bool:
    """Whether the node is out of service because its physical host was found bad."""
    return reason.startswith(RETURNED)


def drained_by_checks(reason: str) -> bool:
    """Whether failed checks drained the node, and who decides on it now does not matter."""
    return reason.startswith((FAILED_CHECKS, FOR_A_PERSON, REBOOT_FIRST))


def reboot_first(reason: str) -> bool:
    """Whether a reboot is tried before the node is replaced, no matter what slurmctld has added."""
    return reason.startswith(REBOOT_FIRST)


def reboot_timed_out(reason: str) -> bool:
    """Whether the node did not come back from a reboot, and slurmctld has given it up."""
    return reason.rpartition(" : ")[2].startswith(_REBOOT_TIMED_OUT)


def kill_task_failed(reason: str) -> bool:
    """Whether slurmd drained the node, because a process of a job did not end."""
    return not reason.startswith(PREFIX) and reason.rpartition(" : ")[2].startswith(KILL_TASK_FAILED)


def from_administrator(reason: str, user: str = "") -> bool:
    """Whether an administrator or another health check gave the reason, or a person has to decide on the node."""
    theirs = bool(reason) and not reason.startswith(PREFIX) and not from_slurm(reason, user)
    return theirs or reason.startswith(FOR_A_PERSON)


def of_checks(checks: Iterable[tuple[str, str]], *, again: bool, reboot_first: bool = False, outcome: str = "") -> str:
    """The reason of a node that failed checks.

    Args:
        checks: the name of each, and what was seen.
        again: it has failed before, so that a person decides on it.
        reboot_first: a reboot may fix it.
        outcome: what a reboot has changed; it comes last.
    """
    names: dict[str, list[str]] = {}
    for check, message in checks:
        names.setdefault(message, []).append(check)
    # Where a tool refuses to answer, all checks that need it have the same message.
    seen = "; ".join(f"{', '.join(those)}: {message}" for message, those in names.items())
    beginning = FOR_A_PERSON if again else REBOOT_FIRST if reboot_first else FAILED_CHECKS
    end = f" ({outcome})" if outcome else ""
    return storable(f"{beginning} {seen}", LONGEST - len(end)) + end


def first_check(reason: str) -> str:
    """The first check in a reason of `of_checks`; empty in any other reason."""
    for beginning in (FOR_A_PERSON, FAILED_CHECKS, REBOOT_FIRST):
        if reason.startswith(beginning):
            return reason[len(beginning) :].partition(":")[0].partition(",")[0].strip()
    return ""


def storable(words: str, longest: int = LONGEST) -> str:
    """A text that Slurm can store and print: one line, no quotes, not longer than so many characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())
    line = line.replace('"', "'").replace("\\", "/").replace("|", "/")
    return line if len(line) <= longest else line[: longest - 3] + "..."
