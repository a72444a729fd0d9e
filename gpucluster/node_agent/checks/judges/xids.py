"""What the kernel log has of GPUs and NVSwitches: Xids, SXids, and faults without a number.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, table "Xids", column of the immediate action), as
Oracle's HPC stack 3.1 has it in xid_catalog_data.json. 63 and 94 are warnings here although the catalogue asks for
nothing: Azure's healthagent and NVIDIA's text on memory errors ask for a reset when the GPU is idle. 92 likewise. 93 is
a warning, too: a GPU with a corrupted infoROM works, and its vendor wants to see it.

A message may have in it whether it is fatal: those of NVLink 5 (144 to 150) and of NVSwitches (SXids) do. A number that
is not known is a warning, and so is a known one that calls itself fatal: the operator should see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpucluster.node_agent.checks import model
from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import PartResult, sum_up
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status

#: The GPU must be reset, or the host restarted or replaced, before it is used again (RESET_GPU, RESTART_BM, RESTART_VM,
#: CHECK_MECHANICALS, UPDATE_SWFW, and the work flows of 48 and 74).
HARDWARE: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "memory error of two bits",
    54: "auxiliary power is not connected",
    62: "the GPU's microcontroller halted",
    64: "a row of memory could not be remapped",
    74: "NVLink error",
    78: "a virtual GPU could not be started",
    79: "the GPU has fallen off the bus",
    95: "memory error that was not contained",
    109: "context switch timeout",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    136: "link training failed",
    140: "memory error that was not recovered",
    143: "the GPU could not be initialised",
    151: "key rotation failed",
    155: "NVLink was marked as defective by software",
    156: "a resource was retired",
    158: "fatal timeout",
}
#: Of these: the ones for which the catalogue asks for hands on the machine (CHECK_MECHANICALS), not for a reset.
BEYOND_REBOOT = frozenset({54})
#: The work of a user's program, or its end (RESTART_APP, and 45 which follows other errors).
OF_PROGRAMS = frozenset(
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89}
    | {*range(96, 106), *range(126, 136), 139}
)
#: Information (IGNORE).
IGNORED = frozenset({14, 37, 38, 44, 66, 67, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161})
#: Errors of NVLink 5, whose messages have in them whether they are fatal (NETIR, SAW, RLW and others).
OF_NVLINK = frozenset(range(144, 151))
#: What the driver logs without a number.
FAULTS: Mapping[str, str] = {
    "fallen off the bus": HARDWARE[79],
    "rminitadapter failed": HARDWARE[143],
}
_CONTAINED = 94
#: 154 names the action that the driver asked for before, and the one that it asks for now.
CHANGED_ACTION = 154
_WANTED = ("reset required", "reboot required", "drain and reset", "drain p2p")


def _status(xid: int, text: str, *, fatal: bool) -> Status:
    if xid == CHANGED_ACTION:
        action = text.lower().rpartition(" to ")[2]
        if any(words in action for words in _WANTED):
            return Status.FAIL
        return Status.PASS if action.startswith("0x0") else Status.WARN
    if xid in HARDWARE or (fatal and xid in (*OF_NVLINK, _CONTAINED)):
        return Status.FAIL
    return Status.PASS if not fatal and (xid in OF_PROGRAMS or xid in IGNORED) else Status.WARN


def judge(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Nothing in the kernel log since the boot asks for a reset, a restart or a repair."""
    log = measured["kernel_log"]
    parts = []
    for event in log["xids"]:
        what = HARDWARE.get(event["xid"], event["text"][:80])
        status = _status(event["xid"], event["text"], fatal=event["fatal"])
        parts.append(PartResult(status, f"Xid {event['xid']} on {_when(event)}: {what}"))
    for event in log["sxids"]:
        status = Status.FAIL if event["fatal"] else Status.WARN
        parts.append(PartResult(status, f"SXid {event['sxid']} on the NVSwitch {_when(event)}: {event['text'][:80]}"))
    for event in log["faults"]:
        parts.append(PartResult(Status.FAIL, f"the driver reports of {_when(event)}: {FAULTS[event['fault']]}"))
    if log["whole"]:
        parts.append(PartResult(Status.PASS, ""))
    else:
        # The log of a host of the local cloud is that of its machine, which may run for months.
        status = Status.SKIP if expected.hardware_emulated else Status.UNKNOWN
        parts.append(PartResult(status, f"the kernel log reaches back {log['covers_s'] / 60:.0f} min only"))
    outcome = sum_up(parts, "no Xid that asks for a reset or a repair since the boot")
    if not BEYOND_REBOOT & {event["xid"] for event in log["xids"]}:
        return outcome
    return replace(outcome, evidence={**outcome.evidence, model.BEYOND_REBOOT: True})


def _when(event: Mapping[str, Any]) -> str:
    return f"{event['pci']}, {event['count']} times, last {event['age_s'] / 60:.0f} min ago"
