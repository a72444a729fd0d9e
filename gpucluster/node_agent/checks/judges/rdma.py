"""Judges of RDMA devices, on what /sys/class/infiniband has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import Absent, PartResult, each, number
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status


class CounterLimit(NamedTuple):
    """How often a counter may grow in an hour before that is a warning, and before it is a failure.

    Attributes:
        warn: more than this is a warning.
        fail: more than this is a fault; None: never.
    """

    warn: float
    fail: float | None


_HOUR = 3600.0
#: By counter. Sources: NVIDIA's NVSentinel 1.0 (run on OCI's H100 and A100: buffer overruns and errors of local link
#: integrity are fatal at the first, symbol errors above 120 an hour; recoveries are degraded above 5 a minute, slow
#: restarts above 10 a second) and Oracle's HPC stack 3.1 (a link that went down once is a warning, twice an error).
#: rnr_nak_retry_err is fatal in NVSentinel; here it warns, because a user's program can cause it.
LIMITS: Mapping[str, CounterLimit] = {
    "link_downed": CounterLimit(0, 1),
    "excessive_buffer_overrun_errors": CounterLimit(0, 0),
    "local_link_integrity_errors": CounterLimit(0, 0),
    "symbol_error": CounterLimit(0, 120),
    "link_error_recovery": CounterLimit(5 * 60, None),
    "rnr_nak_retry_err": CounterLimit(0, None),
    "roce_slow_restart": CounterLimit(10 * _HOUR, None),
}


#: The most that a counter of few bits counts to; there it stays. Source: InfiniBand Architecture, PortCounters.
MOST: Mapping[str, int] = {
    "link_downed": 2**8 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
}


def devices(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The RDMA devices of the shape exist."""
    names = set(measured["rdma"].keys())
    missing = [name for name in expected.rdma_devices if name not in names]
    evidence = {"missing": missing, "found": sorted(names)}
    if missing:
        return CheckOutcome(Status.FAIL, f"no RDMA device {', '.join(missing)}", evidence)
    return CheckOutcome(Status.PASS, f"{len(expected.rdma_devices)} RDMA devices")


def links(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each port is active and its link is up."""

    def one(port: Mapping[str, Any]) -> Iterable[PartResult]:
        state, physical = _word(port, "state"), _word(port, "phys_state")
        if state != "ACTIVE" or physical != "LinkUp":
            yield PartResult(Status.FAIL, f"the port is {state} and its link {physical}")

    return each(_ports(measured, expected), one, "all RDMA links are up")


def speed(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each port has its full speed."""

    def one(port: Mapping[str, Any]) -> Iterable[PartResult]:
        rate = number(_text(port, "rate"))
        if rate < expected.rdma_link_gbps:
            yield PartResult(Status.FAIL, f"{rate:g} Gb/s, not {expected.rdma_link_gbps}")

    return each(_ports(measured, expected), one, f"{expected.rdma_link_gbps} Gb/s on all RDMA links")


def pcie(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The device behind each port uses all its PCIe lanes."""

    def one(port: Mapping[str, Any]) -> Iterable[PartResult]:
        now, most = number(_text(port, "pcie_width")), number(_text(port, "pcie_max_width"))
        if now < most:
            yield PartResult(Status.WARN, f"PCIe x{now:g} of x{most:g}")

    return each(_ports(measured, expected), one, "all RDMA devices use their PCIe lanes")


def errors(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The counters of errors stand still, or grow no faster than LIMITS allow.

    The window begins with an earlier measurement of the last hour. Without one it begins with the boot, and what the
    counters have is not a fault: links go down while the host sets them up, and a counter may stand since before the
    boot. A counter that has reached its end shows nothing.
    """

    def one(window: Mapping[str, Any]) -> Iterable[PartResult]:
        if not window:
            raise Absent("its counters could not be read")
        if window["seconds"] is None:
            raise Absent("its counters were set back: the next check has a window again")
        absent = [counter for counter in LIMITS if window["grown"].get(counter) is None]
        if absent:
            yield PartResult(Status.UNKNOWN, f"no counter {', '.join(absent)}")
        hours = max(1.0, window["seconds"] / _HOUR)
        for counter in (name for name in LIMITS if name not in absent):
            warn, fail = LIMITS[counter]
            grown = window["grown"][counter]
            if window["since_boot"]:
                fail = None
                if grown >= MOST.get(counter, math.inf):
                    continue
            message = f"{counter} has grown by {grown} in {window['seconds'] / 60:.0f} min"
            if fail is not None and grown > fail * hours:
                yield PartResult(Status.FAIL, message)
            elif grown > warn * hours:
                yield PartResult(Status.WARN, message)

    windows = {name: measured["rdma_errors"].get(name, {}) for name in expected.rdma_devices}
    return each(windows, one, "no errors on RDMA links")


def _ports(measured: Measurements, expected: NodeExpectation) -> Mapping[str, Mapping[str, Any]]:
    """By device; what is missing is a port without any value."""
    return {name: measured["rdma"].get(name, {}) for name in expected.rdma_devices}


def _text(port: Mapping[str, Any], name: str) -> str:
    if port.get(name) is None:
        raise Absent(f"no {name}")
    return str(port[name])


def _word(port: Mapping[str, Any], name: str) -> str:
    """The word of a state: "ACTIVE" of "4: ACTIVE"."""
    word = _text(port, name).partition(":")[2].strip()
    if not word:
        raise Absent(f"{name} is {port[name]!r}")
    return word
