"""Judges of the host itself: services, file systems, memory, drives, clock, what a job has left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import Absent, PartResult, each, number
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status

#: Below this, programs on the host fail; and the part of the file system below which it is reported. In bytes, and 1.
LEAST_FREE_BYTES = 1 << 30
LITTLE_FREE = 0.1
#: How far the clock may be off, in seconds. munge refuses messages that are 300 s old.
CLOCK_WARN_S = 1.0
CLOCK_FAIL_S = 60.0
#: A clock that moved by more than this between two checks has jumped: corrections in small steps are far slower.
CLOCK_JUMP_S = 2.0
# Whose GPUs need an IOMMU that passes through.
_PASSED_THROUGH = ("amd",)
# States of a systemd unit that does not run.
_STOPPED = ("inactive", "failed", "deactivating")


def services(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The host's services run."""

    def one(name: str) -> Iterable[PartResult]:
        if name not in measured["services"]:
            raise Absent("systemd said nothing of it")
        state = measured["services"][name]
        if state in ("activating", "reloading"):
            yield PartResult(Status.WARN, f"it is {state}")
        elif state != "active":
            yield PartResult(Status.FAIL, f"it is {state}")

    return each({name: name for name in expected.services}, one, f"{', '.join(expected.services)} run")


def fabric_manager(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The fabric manager runs."""
    state = measured["fabric_manager"]
    status = Status.PASS if state == "active" else Status.FAIL if state in _STOPPED else Status.UNKNOWN
    return CheckOutcome(status, f"nvidia-fabricmanager is {state}")


def failed_units(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No systemd unit has failed."""
    failed = list(measured["failed_units"])
    if failed:
        return CheckOutcome(Status.WARN, f"failed: {', '.join(failed[:6])}", {"units": failed[:64]})
    return CheckOutcome(Status.PASS, "no unit has failed")


def root(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The root file system can be written and has space."""
    return _space(measured["root"], Status.FAIL)


def local_disk(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The local disk can be written; that it is full is the users' own affair."""
    return _space(measured["local_disk"], Status.WARN)


def _space(disk: Mapping[str, Any], full: Status) -> CheckOutcome:
    evidence = dict(disk)
    if disk["read_only"]:
        return CheckOutcome(Status.FAIL, "it is mounted read only", evidence)
    free = f"{disk['free_bytes'] / (1 << 30):.1f} GiB of {disk['bytes'] / (1 << 30):.1f} free"
    if disk["free_bytes"] < min(LEAST_FREE_BYTES, disk["bytes"] * LITTLE_FREE):
        return CheckOutcome(full, free, evidence)
    if disk["inodes"] and not disk["free_inodes"]:
        return CheckOutcome(full, "no inode is free", evidence)
    little = disk["free_bytes"] < disk["bytes"] * LITTLE_FREE
    return CheckOutcome(Status.WARN if little else Status.PASS, free, evidence)


def mounts(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The file systems are mounted and answer. Where one does not answer, the host may be healthy."""

    def one(path: str) -> Iterable[PartResult]:
        if path not in measured["mounts"]:
            raise Absent("it was not looked at")
        mount = measured["mounts"][path]
        if not mount["mounted"]:
            yield PartResult(Status.FAIL, "nothing is mounted there")
        elif mount["fault"]:
            yield PartResult(Status.UNKNOWN, mount["fault"])

    return each({path: path for path in expected.mounts}, one, f"{', '.join(expected.mounts)} answer")


def memory(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The kernel sees the memory that Slurm gives to jobs."""
    mib = int(number(measured["memory_mib"]))
    status = Status.PASS if mib >= expected.memory_mib else Status.FAIL
    return CheckOutcome(status, f"{mib} MiB of memory, {expected.memory_mib} needed", {"mib": mib})


def kernel_settings(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The kernel leaves memory where programs have it and, with AMD's GPUs, its IOMMU passes their accesses through.

    Source: what RCCL warns of at each start, in its src/init.cc: kernel.numa_balancing makes its speed vary, and
    without iommu=pt a job may hang. NVIDIA's tuning guide of Grace turns kernel.numa_balancing off as well.
    """
    seen = measured["kernel_settings"]
    words = list(seen["command_line"])
    faults = []
    if seen["numa_nodes"] > 1 and seen["numa_balancing"] not in ("", "0"):
        faults.append(f"kernel.numa_balancing is {seen['numa_balancing']}, and should be 0")
    if expected.gpu_vendor in _PASSED_THROUGH and "iommu=pt" not in words:
        faults.append("the kernel's command line has no iommu=pt")
    evidence = {
        "numa_nodes": seen["numa_nodes"],
        "numa_balancing": seen["numa_balancing"],
        "iommu": [word for word in words if "iommu" in word],
    }
    if faults:
        return CheckOutcome(Status.WARN, "; ".join(faults), evidence)
    return CheckOutcome(Status.PASS, "as GPUs need it", evidence)


def drives(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The local drives exist and work."""
    states: Mapping[str, str] = measured["drives"]
    live = [name for name, state in states.items() if state == "live"]
    silent = [name for name, state in states.items() if not state]
    evidence = {"drives": dict(states), "expected": expected.drives}
    if len(live) >= expected.drives:
        return CheckOutcome(Status.PASS, f"{len(live)} local drives", evidence)
    if len(live) + len(silent) >= expected.drives:
        return CheckOutcome(Status.UNKNOWN, f"the state of {', '.join(silent)} could not be read", evidence)
    return CheckOutcome(Status.FAIL, f"{len(live)} of {expected.drives} local drives work", evidence)


def clock(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The clock follows a time server."""
    state = measured["clock"]
    offset = state["offset_s"]
    if not state["synchronised"]:
        return CheckOutcome(Status.WARN, "the clock follows no time server", dict(state))
    if offset is None:
        return CheckOutcome(Status.PASS, "the clock follows a time server")
    off = abs(number(offset))
    status = Status.FAIL if off > CLOCK_FAIL_S else Status.WARN if off > CLOCK_WARN_S else Status.PASS
    return CheckOutcome(status, f"the clock is off by {off:.3f} s", dict(state))


def clock_steady(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The clock has not jumped since the last check of this boot."""
    jump = measured["clock_jump"]["seconds"]
    if jump is None:
        return CheckOutcome(Status.SKIP, "the first check since the boot: there is nothing to compare with")
    status = Status.WARN if abs(number(jump)) > CLOCK_JUMP_S else Status.PASS
    return CheckOutcome(status, f"the clock has moved by {jump:+.3f} s against the time since the boot")


def leftovers(measured: Measurements, _expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No process of a user is left that belongs to no job."""
    usage = measured["leftovers"]
    if not usage["processes"]:
        return CheckOutcome(Status.PASS, "no process is left behind")
    text = f"{usage['processes']} processes of users belong to no job and have used {usage['cpu_s']:.0f} s of CPU"
    return CheckOutcome(Status.WARN, text, dict(usage))
