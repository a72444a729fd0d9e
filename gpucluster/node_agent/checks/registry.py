"""All checks of one host: the only list of them. Pure, but for the collectors that it names.

`MEASUREMENTS` has the collector of each measurement that a check needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from gpucluster.node_agent.checks.collect import dcgm as collect_dcgm
from gpucluster.node_agent.checks.collect import driver as collect_driver
from gpucluster.node_agent.checks.collect import gpu as collect_gpu
from gpucluster.node_agent.checks.collect import host as collect_host
from gpucluster.node_agent.checks.collect import kernel_log as collect_kernel_log
from gpucluster.node_agent.checks.collect import mig as collect_mig
from gpucluster.node_agent.checks.collect import rdma as collect_rdma
from gpucluster.node_agent.checks.collect.place import Collector
from gpucluster.node_agent.checks.expected import IMEX, NodeExpectation
from gpucluster.node_agent.checks.judges import dcgm, driver, gpu, host, mig, rdma, xids
from gpucluster.node_agent.checks.model import Check, CheckOutcome, Measurements, Profile, Reaction, Scope

NodeCheck = Check[NodeExpectation]

#: How each measurement is made.
MEASUREMENTS: Mapping[str, Collector] = {
    "clock": collect_host.clock,
    "clock_jump": collect_host.clock_jump,
    "dcgm_short": collect_dcgm.diagnosis(1),
    "dcgm_long": collect_dcgm.diagnosis(3),
    "driver": collect_driver.driver,
    "drives": collect_host.drives,
    "fabric_manager": collect_gpu.fabric_manager,
    "failed_units": collect_host.failed_units,
    "gpu_device_files": collect_gpu.device_files,
    "kernel_log": collect_kernel_log.kernel_log,
    "kernel_settings": collect_host.kernel_settings,
    "leftovers": collect_host.leftovers,
    "local_disk": collect_host.local_disk,
    "memory_mib": collect_host.memory_mib,
    "mig": collect_mig.mig,
    "mounts": collect_host.mounts,
    "nvidia_smi": collect_gpu.nvidia_smi,
    "nvlink": collect_gpu.nvlink,
    "pci_gpus": collect_gpu.pci_gpus,
    "rdma": collect_rdma.rdma,
    "rdma_errors": collect_rdma.rdma_errors,
    "root": collect_host.root,
    "services": collect_host.services,
}

#: The longest that a profile may take, in seconds. Slurm gives up a job whose prolog takes longer than its
#: BatchStartTimeout, 10 s by default.
TOTAL_S: Mapping[Profile, float] = {
    Profile.BOOT: 120.0,
    Profile.PROLOG: 8.0,
    Profile.EPILOG: 8.0,
    Profile.PERIODIC: 20.0,
    Profile.QUICK: 20.0,
    Profile.FULL: 2400.0,
}

_BOOT, _PROLOG, _EPILOG, _PERIODIC, _QUICK, _FULL = Profile
_ALWAYS = frozenset(Profile)
_NO_JOB = frozenset({_BOOT, _QUICK, _FULL})
_SLOWLY = _NO_JOB | {_PERIODIC}
_WITH_JOBS = _SLOWLY | {_PROLOG}
_RUNNING = frozenset({_PERIODIC, _QUICK, _FULL})

# systemd answers late on a busy host, and no job waits for these checks.
_SYSTEMD_S = 15.0

# Whose tools the collectors read. Of other GPUs only the PCI bus and the device files are looked at.
_MEASURED = ("nvidia",)

Condition = Callable[[NodeExpectation], str]


def _anywhere(_expected: NodeExpectation) -> str:
    return ""


def _real(expected: NodeExpectation) -> str:
    return "the hardware of this host is emulated" if expected.hardware_emulated else ""


def _gpus(expected: NodeExpectation) -> str:
    if not expected.gpus:
        return "the shape has no GPUs"
    return _real(expected) if expected.gpus_emulated else ""


def _kernel(expected: NodeExpectation) -> str:
    return _gpus(expected) or _real(expected)


def _bus(expected: NodeExpectation) -> str:
    """An instance of the local cloud sees the PCI bus of the machine, with the GPUs of other instances."""
    of_machine = (
        "the PCI bus of this host has all GPUs of the machine that runs it" if expected.hardware_emulated else ""
    )
    return _gpus(expected) or of_machine


def _nvidia(expected: NodeExpectation) -> str:
    return _gpus(expected) or ("" if expected.gpu_vendor in _MEASURED else "this is not measured on AMD's GPUs yet")


def _card(expected: NodeExpectation) -> str:
    """What is known of the shape's card is not known of other cards."""
    other = "the GPUs are those of the machine that runs this host, and may be other cards than the shape's"
    return _nvidia(expected) or (other if expected.hardware_emulated else "")


def _mig(expected: NodeExpectation) -> str:
    return _nvidia(expected) or ("" if expected.mig else "the pool divides no GPU (gpus.mig in cluster.yml)")


def _nvlinks(expected: NodeExpectation) -> str:
    return _card(expected) or ("" if expected.nvlinks else "the shape's GPUs have no NVLink that is known")


def _fabric(expected: NodeExpectation) -> str:
    return _card(expected) or ("" if expected.fabric_manager else "the shape needs no fabric manager")


def _joins_fabric(expected: NodeExpectation) -> str:
    joins = expected.fabric_manager or IMEX in expected.services
    return _card(expected) or ("" if joins else "the GPUs of the shape join no NVLink fabric")


def _width(expected: NodeExpectation) -> str:
    return _card(expected) or ("" if expected.gpu_pcie_width else "the width of the shape's PCIe links is not known")


def _dcgm(expected: NodeExpectation) -> str:
    here = "DCGM is not on hosts of the local cloud" if expected.hardware_emulated else ""
    return _nvidia(expected) or here or ("" if expected.dcgm else "DCGM is not installed (nvidia.dcgm in cluster.yml)")


def _rdma(expected: NodeExpectation) -> str:
    return _real(expected) if expected.rdma_devices else "the host uses no RDMA devices"


def _rate(expected: NodeExpectation) -> str:
    return _rdma(expected) or ("" if expected.rdma_link_gbps else "the speed of the shape's RDMA links is not known")


def _mlx5(expected: NodeExpectation) -> str:
    known = all(name.startswith("mlx5_") for name in expected.rdma_devices)
    return _rdma(expected) or ("" if known else "the counters of errors are known for mlx5 devices only")


def _drives(expected: NodeExpectation) -> str:
    return _real(expected) if expected.drives else "the shape has no local drives"


def _local_disk(expected: NodeExpectation) -> str:
    return _real(expected) if expected.local_disk else "the host has no local disk"


def _memory(expected: NodeExpectation) -> str:
    return _real(expected) if expected.memory_mib else "it is not known how much memory the host has"


def _mounts(expected: NodeExpectation) -> str:
    return "" if expected.mounts else "the host mounts no shared file system"


def _services(expected: NodeExpectation) -> str:
    return "" if expected.services else "no service is expected on the host"


def _check(
    name: str,
    title: str,
    needs: str | tuple[str, ...],
    judge: Callable[[Measurements, NodeExpectation, str], CheckOutcome],
    *,
    when: frozenset[Profile],
    applies: Condition,
    remedy: str,
    drain: bool = False,
    hardware: bool = False,
    reboot: bool = False,
    timeout_s: float = 5.0,
) -> NodeCheck:
    return Check(
        name=name,
        title=title,
        scope=Scope.HOST,
        profiles=when,
        needs=(needs,) if isinstance(needs, str) else needs,
        timeout_s=timeout_s,
        remedy=remedy,
        reaction=Reaction.DRAIN if drain else Reaction.REPORT,
        judge=judge,
        applies=lambda expected, _subject: applies(expected),
        hardware=hardware,
        # Who is told to reset a GPU may restart the host: its driver resets all of them.
        reboot=reboot or remedy in (_RESTART, _RESET),
    )


_RESTART = "Restart the host; if it comes again, replace the node"
_REPLACE = "Run: gpucluster replace NODE"
_RESET = "Reset the GPU or restart the host when no job runs; if it comes again, replace the node"
# A GPU that is divided (MIG) uses no links, and only the other output shows it.
_LINKS = ("nvlink", "nvidia_smi")

_GPU = (
    _check(
        "gpu_driver", "the driver, its library and its module on disk have one version", "driver", driver.versions,
        when=_ALWAYS, applies=_nvidia, drain=True, remedy=_RESTART,
    ),
    _check(
        "gpu_count", "number of GPUs that the driver sees", "nvidia_smi", gpu.count,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "gpu_bus", "GPUs that answer on the PCI bus", "pci_gpus", gpu.on_bus,
        when=_ALWAYS, applies=_bus, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "gpu_device_files", "device files of the GPUs", "gpu_device_files", gpu.device_files,
        when=_WITH_JOBS, applies=_gpus, drain=True, reboot=True,
        remedy="Load the driver: look at `journalctl -k`, or restart the host",
    ),
    _check(
        "gpu_model", "model of the GPUs", "nvidia_smi", gpu.model,
        when=_NO_JOB, applies=_card, remedy="Compare the instance's shape with cluster.yml",
    ),
    _check(
        "gpu_ecc", "uncorrectable memory errors since the last reset", "nvidia_smi", gpu.ecc,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESET,
    ),
    _check(
        "gpu_repair", "what the driver asks for, and memory that can't be repaired", "nvidia_smi", gpu.repairs,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESET,
    ),
    _check(
        "gpu_row_remap", "rows of memory to be remapped, or that could not be", "nvidia_smi", gpu.row_remap,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESET,
    ),
    _check(
        "gpu_retired_pages", "pages of memory to be retired", "nvidia_smi", gpu.retired_pages,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESET,
    ),
    _check(
        "gpu_pcie_width", "PCIe lanes of the GPUs", "nvidia_smi", gpu.pcie_width,
        when=_WITH_JOBS, applies=_width, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "gpu_pcie_speed", "speed of the GPUs' PCIe links", "nvidia_smi", gpu.pcie_speed,
        when=_WITH_JOBS, applies=_nvidia, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "gpu_clocks", "GPUs that the hardware slows down", "nvidia_smi", gpu.clocks,
        when=_ALWAYS, applies=_nvidia,
        remedy="Look at temperature and power (`nvidia-smi -q`); if it lasts while the node is idle, replace the node",
    ),
    _check(
        "gpu_persistence", "the driver stays loaded", "nvidia_smi", gpu.persistence,
        when=_SLOWLY, applies=_nvidia, remedy="Start nvidia-persistenced on the host",
    ),
    _check(
        "gpu_fabric", "GPUs that have joined the NVLink fabric", "nvidia_smi", gpu.fabric,
        when=_WITH_JOBS, applies=_joins_fabric, drain=True, reboot=True,
        remedy="Restart nvidia-fabricmanager where it is installed, then the host",
    ),
    _check(
        "fabric_manager", "NVIDIA's fabric manager runs", "fabric_manager", host.fabric_manager,
        when=_WITH_JOBS, applies=_fabric, drain=True, remedy="Run on the host: systemctl restart nvidia-fabricmanager",
    ),
    _check(
        "gpu_nvlink", "NVLink links and their speed", _LINKS, gpu.nvlink,
        when=_WITH_JOBS, applies=_nvlinks, drain=True, hardware=True, remedy=_RESET,
    ),
    _check(
        "gpu_nvlink_errors", "NVLink links that had to recover", _LINKS, gpu.nvlink_errors,
        when=_SLOWLY, applies=_nvlinks, remedy=f"Watch whether it grows. {_RESET}",
    ),
    _check(
        "gpu_mig", "GPUs are divided (MIG) as the pool defines", "mig", mig.instances,
        when=_WITH_JOBS, applies=_mig, drain=True, reboot=True,
        remedy="Run on the host when no job runs: systemctl restart gpucluster-mig; then restart the host",
    ),
    _check(
        "gpu_xid", "Xids in the kernel log since the boot", "kernel_log", xids.judge,
        when=_ALWAYS, applies=_nvidia, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "dcgm_short", "diagnosis of DCGM, level 1", "dcgm_short", dcgm.judge("dcgm_short"),
        when=frozenset({_BOOT}), applies=_dcgm, drain=True, timeout_s=100.0,
        remedy="Run on the host: dcgmi diag -r 2; then replace the node",
    ),
    _check(
        "dcgm_long", "diagnosis of DCGM, level 3", "dcgm_long", dcgm.judge("dcgm_long", hardware=True),
        when=frozenset({_FULL}), applies=_dcgm, drain=True, hardware=True, timeout_s=2300.0, remedy=_REPLACE,
    ),
)  # fmt: skip

_RDMA_CHECKS = (
    _check(
        "rdma_devices", "RDMA devices of the shape", "rdma", rdma.devices,
        when=_WITH_JOBS, applies=_rdma, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "rdma_links", "RDMA links are up", "rdma", rdma.links,
        when=_WITH_JOBS, applies=_rdma, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "rdma_speed", "speed of the RDMA links", "rdma", rdma.speed,
        when=_WITH_JOBS, applies=_rate, drain=True, hardware=True, remedy=_RESTART,
    ),
    _check(
        "rdma_pcie", "PCIe lanes of the RDMA devices", "rdma", rdma.pcie,
        when=_SLOWLY, applies=_rdma, remedy=_RESTART,
    ),
    _check(
        "rdma_errors", "errors on RDMA links in the last hour", "rdma_errors", rdma.errors,
        when=_WITH_JOBS, applies=_mlx5, drain=True, hardware=True, remedy=_REPLACE,
    ),
)  # fmt: skip

_HOST = (
    _check(
        "root_file_system", "the root file system can be written and has space", "root", host.root,
        when=_ALWAYS, applies=_anywhere, drain=True,
        remedy="Remove files that are not needed: du -xh / | sort -h | tail",
    ),
    _check(
        "local_disk", "the local disk can be written and has space", "local_disk", host.local_disk,
        when=_ALWAYS, applies=_local_disk, drain=True, remedy="Run `gpucluster apply`; if it is full, remove files",
    ),
    _check(
        "mounts", "shared file systems are mounted and answer", "mounts", host.mounts,
        when=_WITH_JOBS, applies=_mounts, drain=True, remedy="Look at the file server, then run `gpucluster apply`",
    ),
    _check(
        "memory", "memory that the kernel sees", "memory_mib", host.memory,
        when=_SLOWLY, applies=_memory, drain=True, hardware=True, remedy=_REPLACE,
    ),
    _check(
        "kernel_settings", "settings of the kernel for GPUs", "kernel_settings", host.kernel_settings,
        when=_SLOWLY, applies=_kernel,
        remedy="Run `gpucluster apply`; iommu=pt goes into the image, or into GRUB_CMDLINE_LINUX before a restart",
    ),
    _check(
        "drives", "local NVMe drives", "drives", host.drives,
        when=_SLOWLY, applies=_drives, drain=True, hardware=True, remedy=_REPLACE,
    ),
    _check(
        "services", "services of the host run", "services", host.services,
        when=_RUNNING, applies=_services, timeout_s=_SYSTEMD_S,
        remedy="Run on the host: systemctl status NAME; journalctl -u NAME",
    ),
    _check(
        "failed_units", "systemd units that have failed", "failed_units", host.failed_units,
        when=_RUNNING, applies=_anywhere, timeout_s=_SYSTEMD_S,
        remedy="Run on the host: systemctl status NAME; journalctl -u NAME",
    ),
    _check(
        "clock", "the clock follows a time server", "clock", host.clock,
        when=_RUNNING, applies=_real, remedy="Run on the host: chronyc tracking; systemctl status chronyd",
    ),
    _check(
        "clock_jump", "the clock has not jumped", "clock_jump", host.clock_steady,
        when=_RUNNING, applies=_real, remedy="Look who sets the clock: chronyc tracking; journalctl -u chronyd",
    ),
    _check(
        "leftover_processes", "processes of users outside jobs", "leftovers", host.leftovers,
        when=frozenset({_EPILOG}), applies=_anywhere, remedy="Look at them on the host: ps -eo pid,user,cgroup,args",
    ),
)  # fmt: skip

#: All checks, in the order in which they are printed.
CHECKS: tuple[NodeCheck, ...] = (*_HOST, *_GPU, *_RDMA_CHECKS)
BY_NAME: Mapping[str, NodeCheck] = {check.name: check for check in CHECKS}


def of_profile(profile: Profile) -> tuple[NodeCheck, ...]:
    """The checks of a profile."""
    return tuple(check for check in CHECKS if profile in check.profiles)


def limits(checks: tuple[NodeCheck, ...], total_s: float) -> dict[str, float]:
    """By measurement that these checks need, the seconds that it has."""
    seconds: dict[str, float] = {}
    for check in checks:
        for name in check.needs:
            seconds[name] = max(seconds.get(name, 0.0), min(check.timeout_s, total_s))
    return seconds


def of_hardware() -> frozenset[str]:
    """The names of the checks whose failure shows that the physical host is bad."""
    return frozenset(check.name for check in CHECKS if check.hardware)


def drains() -> frozenset[str]:
    """The names of the checks whose failure drains the node."""
    return frozenset(check.name for check in CHECKS if check.reaction is Reaction.DRAIN)


def reboots() -> frozenset[str]:
    """The names of the checks whose failure drains the node, and which a reboot may fix."""
    return frozenset(check.name for check in CHECKS if check.reaction is Reaction.DRAIN and check.reboot)
