"""What `scontrol --oneliner show nodes` prints: one line for each node (Slurm 22.05 to 26.05).

A value that can hold any text (a reason, a user's name) comes last in what is read here, because it may contain what
looks like another field, or line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_LINES = re.compile(r"\n(?=NodeName=)")
_NODE = re.compile(r"NodeName=(\S+) (.*?) State=(\S+) ThreadsPerCore=")
_ADDRESS = re.compile(r"(?:^| )NodeAddr=(\S+)")
# The user and the time are the last brackets: a reason may hold some of its own.
_REASON = re.compile(r" Reason=(.*) \[([^\s\[\]]*)@[^\s\[\]]*\](?=\s|$)", re.DOTALL)
_INSTANCE = re.compile(r".* InstanceId=(\S+)", re.DOTALL)
# The signs that older versions put behind a state, as the words that newer versions print.
_FLAG_OF_SIGN = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
#: The flags of a node that is powered down, is powering down or up, or is about to.
POWER = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"})
#: Slurm will reboot the node when no job has it, or has told it to.
REBOOT = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})
#: A job holds the node, or Slurm cleans up after one.
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
#: Its slurmd does not answer, or slurmctld has given it up.
SILENT = frozenset({"DOWN", "NOT_RESPONDING"})
#: Words of `sinfo --format=%T`: the node can start a small step now, or in a moment. Slurm calls an idle node
#: planned that a job waits for.
SINFO_FREE = frozenset({"idle", "mixed", "completing", "planned"})
#: Jobs have all of the node.
SINFO_FULL = frozenset({"allocated"})
#: Jobs have the node, or wait for it: another one may have to wait for them.
SINFO_IN_USE = SINFO_FULL | SINFO_FREE - {"idle"}
# What srun prints: ESLURM_NODES_BUSY, in Slurm's slurm_errno.c.
_BUSY = "Requested nodes are busy"
#: All signs.
SIGNS = "".join(_FLAG_OF_SIGN)


@dataclass(frozen=True)
class NodeLine:
    """One node.

    Args:
        flags: the words of State, such as {"IDLE", "CLOUD", "POWERED_DOWN"}.
        address: NodeAddr; empty if the line has none.
        reason: why it is down or drained; `reason_user`: who set the reason.
        instance_id: the OCID that slurmd reported when it registered; empty before, and with Slurm before 23.11.
    """

    name: str
    flags: frozenset[str]
    address: str = ""
    reason: str = ""
    reason_user: str = ""
    instance_id: str = ""


def parse(text: str) -> Iterator[NodeLine]:
    """The nodes, in their order.

    Raises:
        ValueError: a line can't be read; its text.
    """
    return map(parse_line, lines(text))


def lines(text: str) -> Iterator[str]:
    """The part of the text that each node has."""
    return (line for line in _LINES.split(text) if line.strip())


def parse_line(line: str) -> NodeLine:
    """One node.

    Raises:
        ValueError: the line can't be read; its text.
    """
    match = _NODE.match(line)
    if match is None:
        raise ValueError(line[:200])
    name, before, state = match.groups()
    rest = line[match.end() :]
    reason = _REASON.search(rest)
    instance = _INSTANCE.match(rest)
    address = _ADDRESS.search(before)
    return NodeLine(
        name=name,
        flags=node_flags(state),
        address=address.group(1) if address else "",
        reason=reason.group(1) if reason else "",
        reason_user=reason.group(2) if reason else "",
        instance_id=instance.group(1).replace("(null)", "") if instance else "",
    )


def is_busy(output: str) -> bool:
    """Whether srun has printed that others have the nodes."""
    return _BUSY in output


def sinfo_use(state: str) -> str:
    """A state of sinfo without the signs of a node that is planned for a job, or cleans up after one."""
    return state.rstrip("-+")


@lru_cache(maxsize=4096)
def node_flags(state: str) -> frozenset[str]:
    """The words of a State of `scontrol show node`, signs included: `IDLE*+CLOUD` is IDLE, NOT_RESPONDING, CLOUD.

    Cached: ten thousand nodes have a few dozen different states.
    """
    return frozenset(_words(state))


def _words(state: str) -> Iterator[str]:
    for word in state.split("+"):
        bare = word.rstrip(SIGNS)
        yield bare
        yield from (_FLAG_OF_SIGN[sign] for sign in word[len(bare) :])
