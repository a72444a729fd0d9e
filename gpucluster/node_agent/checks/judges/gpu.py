"""Judges of NVIDIA GPUs, on what `nvidia-smi -q -x` and `nvidia-smi nvlink` print.

The names of the values are those of driver 580 (DTD v13); where a driver before it has another name, both are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import Absent, PartResult, each, is_broken, leaf, number, sum_up, yes
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status

Leaves = Mapping[str, str]

#: More remapped rows than this after uncorrectable errors: replace the GPU. Source: Oracle's HPC stack 3.1.
MOST_ROWS_REMAPPED = 512
#: The driver from which on `nvidia-smi` has these values for certain; older ones are not asked for them.
_DRIVER_WITH_REPAIRS = 580
_LINK = "pci/pci_gpu_link_info/"
_VOLATILE = "ecc_errors/volatile/"
# Of drivers before 580, where `gpu_recovery_action` has it.
_RESET = "gpu_reset_status/reset_required"
_DRAIN_AND_RESET = "gpu_reset_status/drain_and_reset_recommended"
_REMAPPED = "remapped_rows/remapped_row_"
_RETIRED = "retired_pages/"
# Before Ampere pages are retired, from Ampere on rows are remapped. Source: NVIDIA, "GPU Memory Error Management".
_RETIRES_PAGES = ("Volta", "Pascal", "Maxwell", "Kepler", "Turing")


def count(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """As many GPUs as the shape has."""
    gpus = measured["nvidia_smi"]["gpus"]
    gpu_count, attached_count = len(gpus), int(number(measured["nvidia_smi"]["attached"]))
    if gpu_count != attached_count:
        return CheckOutcome(Status.UNKNOWN, f"nvidia-smi counts {attached_count} GPUs and describes {gpu_count}")
    for index, gpu in enumerate(gpus):
        words = next((value for value in gpu.values() if is_broken(value)), "")
        if words:
            return CheckOutcome(Status.FAIL, f"GPU {index}: {words}", {"found": gpu_count, "expected": expected.gpus})
    status = Status.PASS if gpu_count == expected.gpus else Status.FAIL
    return CheckOutcome(status, f"{gpu_count} of {expected.gpus} GPUs", {"found": gpu_count, "expected": expected.gpus})


def model(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The GPUs of the shape."""
    model_words = expected.gpu_model.split("_")

    def one(leaves: Leaves) -> Iterable[PartResult]:
        name = leaf(leaves, "product_name")
        words = name.lower().replace("-", " ").split()
        if not any(words[start : start + len(model_words)] == model_words for start in range(len(words))):
            yield PartResult(Status.FAIL, f"it is {name}, not {' '.join(model_words).upper()}")

    return _each_gpu(measured, expected, one, f"all are {' '.join(model_words).upper()}")


def ecc(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No uncorrectable error of memory since the last reset."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        if not yes(leaf(leaves, "ecc_mode/current_ecc")):
            yield PartResult(Status.WARN, "ECC is switched off")
            return
        names = _ecc_counters(leaves)
        bad = {name: int(number(leaf(leaves, _VOLATILE + name))) for name in names}
        wrong = [f"{value} {name}" for name, value in bad.items() if value]
        if wrong:
            yield PartResult(Status.FAIL, "uncorrectable ECC errors: " + ", ".join(wrong))

    return _each_gpu(measured, expected, one, "no uncorrectable ECC errors since the last reset")


def _ecc_counters(leaves: Leaves) -> tuple[str, ...]:
    if f"{_VOLATILE}double_bit/total" in leaves:  # Volta
        return ("double_bit/total",)
    if f"{_VOLATILE}sram_uncorrectable" in leaves:  # drivers before 550
        return ("sram_uncorrectable", "dram_uncorrectable")
    return ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")


def repairs(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """What the driver itself reports of the health of a GPU's memory and of what it needs."""
    warnings = [PartResult(Status.WARN, warning) for warning in measured["nvidia_smi"]["warnings"]]
    driver, one = measured["nvidia_smi"]["driver"], _repairs_of
    if number(driver) < _DRIVER_WITH_REPAIRS:
        one = _reset_of
        if not warnings and not any(_RESET in leaves for leaves in measured["nvidia_smi"]["gpus"]):
            return CheckOutcome(Status.SKIP, f"driver {driver} does not report it; {_DRIVER_WITH_REPAIRS} and later do")
    good = "the driver asks for nothing"
    outcome = _each_gpu(measured, expected, one, good)
    return sum_up([*warnings, PartResult(outcome.status, outcome.message)], good)


def _reset_of(leaves: Leaves) -> Iterable[PartResult]:
    flags = [name for name in (_RESET, _DRAIN_AND_RESET) if name in leaves]
    if not flags:
        yield PartResult(Status.SKIP, "its driver does not report whether it must be reset")
    for name in flags:
        if yes(leaf(leaves, name)):
            yield PartResult(Status.FAIL, f"the driver reports: {name.rpartition('/')[2].replace('_', ' ')}")


def _repairs_of(leaves: Leaves) -> Iterable[PartResult]:
    action = leaf(leaves, "gpu_recovery_action")
    if action.lower() != "none":
        yield PartResult(Status.FAIL, f"the driver asks for: {action}")
    if not yes(leaf(leaves, "ecc_mode/current_ecc")):
        return  # the check gpu_ecc reports it
    for name, what in (
        ("aggregate/sram_threshold_exceeded", "too many errors of SRAM in its life"),
        ("unrepairable_memory", "memory that can't be repaired"),
    ):
        if yes(leaf(leaves, f"ecc_errors/{name}")):
            yield PartResult(Status.FAIL, what)
    for name in ("channel_repair_pending", "tpc_repair_pending"):
        if yes(leaf(leaves, f"ecc_errors/{name}")):
            yield PartResult(Status.WARN, f"{name.replace('_', ' ')}: reset the GPU when it is idle")


def row_remap(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No row of memory waits to be remapped, and none could not be."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        if leaf(leaves, "product_architecture") in _RETIRES_PAGES:
            yield PartResult(Status.SKIP, "it retires pages")
            return
        # A text instead of values: N/A.
        if "remapped_rows" in leaves and _divided(leaves):
            yield PartResult(Status.SKIP, "it is divided (MIG), and nvidia-smi does not report its remapped rows")
            return
        if yes(leaf(leaves, f"{_REMAPPED}failure")):
            yield PartResult(Status.FAIL, "a row of memory could not be remapped: replace the GPU")
        if yes(leaf(leaves, f"{_REMAPPED}pending")):
            yield PartResult(Status.FAIL, "rows of memory wait to be remapped: reset the GPU")
        rows = int(number(leaf(leaves, f"{_REMAPPED}unc")))
        if rows > MOST_ROWS_REMAPPED:
            yield PartResult(
                Status.FAIL, f"{rows} rows remapped after uncorrectable errors, more than {MOST_ROWS_REMAPPED}"
            )

    return _each_gpu(measured, expected, one, "no row waits to be remapped")


def retired_pages(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No page of memory waits to be retired (GPUs before Ampere)."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        if leaf(leaves, "product_architecture") not in _RETIRES_PAGES:
            yield PartResult(Status.SKIP, "it remaps rows")
            return
        if yes(leaf(leaves, f"{_RETIRED}pending_retirement")):
            yield PartResult(Status.FAIL, "pages of memory wait to be retired: reset the GPU")
        for kind in ("multiple_single_bit_retirement", "double_bit_retirement"):
            number(leaf(leaves, f"{_RETIRED}{kind}/retired_count"))

    return _each_gpu(measured, expected, one, "no page waits to be retired")


def pcie_width(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each GPU uses all its PCIe lanes."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        now = int(number(leaf(leaves, f"{_LINK}link_widths/current_link_width")))
        if now < expected.gpu_pcie_width:
            yield PartResult(Status.FAIL, f"PCIe x{now}, not x{expected.gpu_pcie_width}")

    return _each_gpu(measured, expected, one, f"PCIe x{expected.gpu_pcie_width} on all GPUs")


def pcie_speed(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each GPU's PCIe link has its full speed. A GPU that rests may have lowered it."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        most = int(number(leaf(leaves, f"{_LINK}pcie_gen/max_link_gen")))
        now = int(number(leaf(leaves, f"{_LINK}pcie_gen/current_link_gen")))
        if leaf(leaves, "performance_state") != "P0":
            if now < most:
                yield PartResult(Status.SKIP, "it rests, and so may its link")
        elif now < most:
            yield PartResult(Status.FAIL, f"PCIe generation {now}, not {most}")

    return _each_gpu(measured, expected, one, "all PCIe links have their full speed")


def clocks(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The hardware slows no GPU down. Idle, a power cap and settings of applications are no faults."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        for name, what in (
            ("hw_thermal_slowdown", "the hardware lowers the clock: too hot"),
            ("hw_power_brake_slowdown", "the hardware lowers the clock: the power supply asks for it"),
            ("hw_slowdown", "the hardware lowers the clock"),
        ):
            if yes(_event_reason(leaves, name)):
                yield PartResult(Status.FAIL, what)
                return
        if yes(_event_reason(leaves, "sw_thermal_slowdown")):
            yield PartResult(Status.WARN, "the driver lowers the clock: it is hot")

    return _each_gpu(measured, expected, one, "no GPU is slowed down")


def _event_reason(leaves: Leaves, name: str) -> str:
    before_535 = f"clocks_throttle_reasons/clocks_throttle_reason_{name}"
    return leaf(leaves, before_535 if before_535 in leaves else f"clocks_event_reasons/clocks_event_reason_{name}")


def persistence(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The driver stays loaded between jobs."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        if not yes(leaf(leaves, "persistence_mode")):
            yield PartResult(Status.WARN, "persistence mode is off")

    return _each_gpu(measured, expected, one, "persistence mode is on")


def fabric(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each GPU has joined the NVLink fabric. GPUs before Hopper do not report it."""

    def one(leaves: Leaves) -> Iterable[PartResult]:
        if leaf(leaves, "product_architecture") in (*_RETIRES_PAGES, "Ampere"):
            yield PartResult(Status.SKIP, "its generation does not report it")
            return
        state = leaf(leaves, "fabric/state")
        if state.lower() == "in progress":
            yield PartResult(Status.WARN, "it is joining the NVLink fabric")
        elif state.lower() != "completed":
            yield PartResult(Status.FAIL, f"it has not joined the NVLink fabric: {state}")
        else:
            status = leaf(leaves, "fabric/status")
            if status.lower() != "success":
                yield PartResult(Status.FAIL, f"it could not join the NVLink fabric: {status}")

    return _each_gpu(measured, expected, one, "all GPUs have joined the NVLink fabric")


def nvlink(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Each GPU has its NVLink links, at full speed."""

    def one(links: Mapping[str, Any]) -> Iterable[PartResult]:
        speeds = [str(link.get("speed", "")) for link in links.values()]
        dead = [name for name, link in links.items() if str(link.get("speed", "")).strip("<>").lower() == "inactive"]
        if dead:
            yield PartResult(Status.FAIL, f"{len(dead)} links are inactive: {', '.join(dead[:8])}")
        elif len(speeds) != expected.nvlinks:
            # A list that ends too early proves nothing.
            yield PartResult(Status.UNKNOWN, f"nvidia-smi lists {len(speeds)} of {expected.nvlinks} links")
        slow = [text for text in speeds if text.strip("<>").lower() != "inactive"]
        slow = [text for text in slow if number(text) < expected.nvlink_gb_per_s]
        if slow:
            yield PartResult(Status.FAIL, f"{len(slow)} links at {slow[0]}, not {expected.nvlink_gb_per_s} GB/s")

    return _each_linked(measured, expected, one, f"{expected.nvlinks} NVLink links on each GPU")


def nvlink_errors(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """No NVLink link had to recover. Replays are the link's own way to correct an error."""

    def one(links: Mapping[str, Any]) -> Iterable[PartResult]:
        if len(links) != expected.nvlinks:
            raise Absent(f"nvidia-smi lists {len(links)} of {expected.nvlinks} links")
        for name, link in links.items():
            if "recovery errors" not in link:
                raise Absent(f"link {name} has no count of recoveries")
            if number(link["recovery errors"]) > 0:
                yield PartResult(Status.WARN, f"link {name} has recovered {link['recovery errors']} times")

    return _each_linked(measured, expected, one, "no NVLink link had to recover")


def _divided(leaves: Leaves) -> bool:
    return leaves.get("mig_mode/current_mig", "") == "Enabled"


def _each_linked(
    measured: Measurements,
    expected: NodeExpectation,
    one: Callable[[Mapping[str, Any]], Iterable[PartResult]],
    good: str,
) -> CheckOutcome:
    divided = [_divided(gpu) for gpu in measured["nvidia_smi"]["gpus"]]
    gpus = measured["nvlink"]
    parts = []
    for index in range(expected.gpus):
        name = f"GPU {index}"
        if index >= len(divided) or name not in gpus:
            parts.append(PartResult(Status.UNKNOWN, f"{name}: nvidia-smi does not list its links"))
        elif divided[index]:
            parts.append(PartResult(Status.SKIP, f"{name}: it is divided (MIG), and uses no links"))
        else:
            outcome = each({name: gpus[name]}, one, good)
            parts.append(PartResult(outcome.status, outcome.message))
    return sum_up(parts, good)


def _each_gpu(
    measured: Measurements, expected: NodeExpectation, one: Callable[[Leaves], Iterable[PartResult]], good: str
) -> CheckOutcome:
    gpus = {f"GPU {index}": gpu for index, gpu in enumerate(measured["nvidia_smi"]["gpus"])}
    # A host of the local cloud has the cards of a workstation: some have no ECC.
    return each(gpus, one, good, any_model=expected.hardware_emulated)


def on_bus(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """All GPUs answer on the PCI bus, whatever the driver reports."""
    if not isinstance(measured["pci_gpus"], list):
        raise Absent("it is not a list of devices")
    gpus = [device for device in measured["pci_gpus"] if device["vendor"] == expected.gpu_vendor]
    lost = [device["address"] for device in gpus if device["lost"]]
    evidence = {"found": len(gpus), "expected": expected.gpus, "lost": lost}
    if lost:
        return CheckOutcome(Status.FAIL, f"GPUs that no longer answer: {', '.join(lost)}", evidence)
    status = Status.PASS if len(gpus) == expected.gpus else Status.FAIL
    return CheckOutcome(status, f"{len(gpus)} of {expected.gpus} GPUs on the PCI bus", evidence)


def device_files(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Slurm's device files of the GPUs exist."""
    missing = [name for name in expected.gpu_device_files if not measured["gpu_device_files"][name]]
    if missing:
        return CheckOutcome(Status.FAIL, f"no {', '.join(missing[:8])}", {"missing": missing})
    return CheckOutcome(Status.PASS, f"{len(measured['gpu_device_files'])} device files")
