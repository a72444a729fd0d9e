"""Judge of NVIDIA's driver: the kernel, the programs and the disk have one version."""

from __future__ import annotations

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import Absent
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status


def versions(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """Where driver and library differ, no job can use GPUs. The module on disk is that of the next boot."""
    driver = measured["driver"]
    loaded, library, on_disk = (driver[name] for name in ("loaded", "library", "on_disk"))
    if not all(isinstance(version, str) for version in (loaded, library, on_disk)) or not library:
        raise Absent("a version is not text")
    if not loaded:
        there = f"its module on disk is {on_disk}" if on_disk else "the running kernel has no module of it on disk"
        return CheckOutcome(Status.FAIL, f"NVIDIA's driver is not loaded; {there}, its library {library}", dict(driver))
    if loaded != library:
        words = f"the loaded driver is {loaded}, its library {library}: packages were changed below the running driver"
        return CheckOutcome(Status.FAIL, f"{words}; restart the host", dict(driver))
    if expected.hardware_emulated:
        # An instance of the local cloud: driver and library come from the machine that runs it.
        return CheckOutcome(
            Status.PASS, f"driver and library are {loaded}, those of the machine that runs this host", dict(driver)
        )
    if not on_disk:
        words = f"driver and library are {loaded}, and the running kernel has no module of the driver on disk"
        return CheckOutcome(Status.WARN, f"{words}: after a restart there may be no driver", dict(driver))
    if on_disk != loaded:
        words = f"driver and library are {loaded}, the module on disk is {on_disk}"
        return CheckOutcome(Status.WARN, f"{words}: after a restart they differ", dict(driver))
    return CheckOutcome(Status.PASS, f"driver, library and module on disk are {loaded}", dict(driver))
