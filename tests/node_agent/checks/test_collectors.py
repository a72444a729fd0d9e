"""The collectors on a tree of files like the kernel's, and with programs that answer, fail, or answer nonsense."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from gpucluster.node_agent.checks import refusals, registry
from gpucluster.node_agent.checks.collect.place import MeasuredHost, measure
from gpucluster.node_agent.checks.judges.rdma import LIMITS
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement, Status
from gpucluster.node_agent.programs import ProgramAnswer, ask
from tests.node_agent.checks.measured import DATA, NODE, XML, healthy, judged

BOOT = "11111111-2222-3333-4444-555555555555"


MOUNTS = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "30 22 0:30 / /home rw,relatime - nfs4 a:/home rw\n"
    "31 22 9:1 / /mnt/my\\040disk rw - xfs /dev/nvme rw\n"
)


class BootClock:
    """Time since the boot, and the wall clock."""

    def __init__(self) -> None:
        self.now, self.offset = 5000.0, 1_700_000_000.0


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def tree(root: Path) -> None:
    """A node with two GPUs, an NVSwitch, two RDMA devices and two drives."""
    write(root / "proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    write(root / "proc/meminfo", "MemTotal:       3170893824 kB\nMemFree: 1 kB\n")
    write(root / "proc/self/mountinfo", MOUNTS)
    (root / "home").mkdir()
    for name, vendor, kind, config in (
        ("0000:18:00.0", "0x10de", "0x030200", b"\xde\x10\x35\x23more"),
        ("0000:2a:00.0", "0x10de", "0x030200", b"\xde\x10\x35\x23more"),
        ("0000:05:00.0", "0x10de", "0x068000", b"\xde\x10\xa3\x22more"),
        ("0000:06:00.0", "0x15b3", "0x020000", b"\xb3\x15\x1b\x10more"),
    ):
        device = root / "sys/bus/pci/devices" / name
        write(device / "vendor", vendor + "\n")
        write(device / "class", kind + "\n")
        write(device / "config", config)
    for name in ("mlx5_0", "mlx5_3"):
        device = root / "sys/class/infiniband" / name
        for file, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)")):
            write(device / "ports/1" / file, text + "\n")
        for counter in LIMITS:
            folder = "hw_counters" if counter.startswith(("rnr", "roce")) else "counters"
            write(device / "ports/1" / folder / counter, "0\n")
        for file in ("current_link_width", "max_link_width"):
            write(device / "device" / file, "16\n")
    for name, transport in (("nvme0", "pcie"), ("nvme1", "pcie"), ("nvme2", "tcp")):
        write(root / "sys/class/nvme" / name / "state", "live\n")
        write(root / "sys/class/nvme" / name / "transport", transport + "\n")
    write(root / "dev/nvidia0", "")


def said(answers: Mapping[str, Any]) -> Callable[[list[str], float, int], ProgramAnswer]:
    """Programs by the start of their command line: what they print, or a whole answer."""

    def ask_double(argv: list[str], _seconds: float, _most: int) -> ProgramAnswer:
        for words, answer in answers.items():
            if " ".join(argv).startswith(words):
                return answer if isinstance(answer, ProgramAnswer) else ProgramAnswer(0, answer.encode(), b"", "")
        return ProgramAnswer(None, b"", b"", f"{argv[0]} is not installed")

    return ask_double


@pytest.fixture
def host(tmp_path: Path, clock: BootClock) -> MeasuredHost:
    tree(tmp_path / "root")
    return MeasuredHost(
        NODE, tmp_path / "root", tmp_path / "state", lambda: clock.now, lambda: clock.now + clock.offset, said({})
    )


def collect(name: str, host: MeasuredHost) -> Any:
    return measure(registry.MEASUREMENTS[name], host, 1.0)


def test_the_measurements_of_the_tree(host: MeasuredHost) -> None:
    assert [gpu["address"] for gpu in collect("pci_gpus", host)] == ["0000:18:00.0", "0000:2a:00.0"]
    assert collect("gpu_device_files", host)["/dev/nvidia0"] is True
    assert collect("gpu_device_files", host)["/dev/nvidia1"] is False
    assert collect("rdma", host)["mlx5_3"] == healthy()["rdma"]["mlx5_3"]
    assert collect("drives", host) == {"nvme0": "live", "nvme1": "live"}
    assert collect("memory_mib", host) == 3170893824 // 1024
    assert collect("root", host)["read_only"] is False


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("rdma_errors", "proc/sys/kernel/random/boot_id"),
        ("clock_jump", "proc/sys/kernel/random/boot_id"),
        ("memory_mib", "proc/meminfo"),
        ("mounts", "proc/self/mountinfo"),
        ("root", "proc/self/mountinfo"),
        ("pci_gpus", "sys/bus/pci/devices/0000:18:00.0/config"),
    ],
)
def test_without_its_file_there_is_no_measurement(name: str, path: str, host: MeasuredHost) -> None:
    (host.root / path).unlink()
    found = collect(name, host)
    assert isinstance(found, Missing)
    assert path.rsplit("/", maxsplit=1)[-1] in found.reason


def test_a_gpu_that_fell_off_the_bus(host: MeasuredHost) -> None:
    write(host.root / "sys/bus/pci/devices/0000:2a:00.0/config", b"\xff" * 64)
    found = judged("gpu_bus", {"pci_gpus": collect("pci_gpus", host)}, replace(NODE, gpus=2))
    assert (found.status, found.message) == (Status.FAIL, "GPUs that no longer answer: 0000:2a:00.0")


def test_a_read_only_root(host: MeasuredHost) -> None:
    write(host.root / "proc/self/mountinfo", "22 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n")
    assert collect("root", host)["read_only"] is True


def test_a_share_that_hangs_is_unknown_and_one_that_is_missing_a_fault(host: MeasuredHost) -> None:
    node = replace(NODE, mounts=("/home", "/data"))
    hangs = replace(
        host, expected=node, ask=said({"stat": ProgramAnswer(None, b"", b"", "stat gave no answer within 1 s")})
    )
    found = collect("mounts", hangs)
    assert found == {
        "/home": {"mounted": True, "fault": "stat gave no answer within 1 s"},
        "/data": {"mounted": False, "fault": ""},
    }
    stale = ProgramAnswer(1, b"", b"stat: cannot read: Stale file handle", "")
    assert "Stale" in collect("mounts", replace(hangs, ask=said({"stat": stale})))["/home"]["fault"]
    assert collect("mounts", replace(hangs, ask=ask))["/home"] == {"mounted": True, "fault": ""}


def test_nvidia_smi(host: MeasuredHost) -> None:
    links = {f"nvidia-smi nvlink -{key}": (DATA / f"nvidia-smi-nvlink-{key}.txt").read_text() for key in "se"}
    good = replace(host, ask=said({**links, "nvidia-smi -q -x": XML}))
    assert collect("nvidia_smi", good) == healthy()["nvidia_smi"]
    assert {name: len(gpu) for name, gpu in collect("nvlink", good).items()} == {"GPU 0": 18, "GPU 1": 18}
    node = replace(NODE, gpus=2)
    assert judged("gpu_nvlink", {**healthy(), "nvlink": collect("nvlink", good)}, node).status is Status.PASS
    assert judged("gpu_nvlink_errors", {**healthy(), "nvlink": collect("nvlink", good)}, node).status is Status.PASS


def test_a_gpu_without_any_link(host: MeasuredHost) -> None:
    text = "GPU 0: NVIDIA H200 (UUID: x)\n\t NVML: Unable to retrieve NVLink information as all links are inActive\n"
    found = collect("nvlink", replace(host, ask=said({"nvidia-smi nvlink": text})))
    measurements = {**healthy(), "nvlink": found}
    assert judged("gpu_nvlink", measurements, replace(NODE, gpus=1)).status is Status.FAIL


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ProgramAnswer(None, b"", b"", "nvidia-smi is not installed"), "not installed"),
        (ProgramAnswer(-9, XML.encode()[:1000], b"", "nvidia-smi gave no answer within 5 s"), "no answer within 5 s"),
        (ProgramAnswer(-11, XML.encode(), b"", ""), "ended by signal 11"),
        (ProgramAnswer(4, b"", b"Insufficient Permissions\n", ""), "status 4: Insufficient Permissions"),
        (ProgramAnswer(255, b"something new\n", b"", ""), "status 255: something new"),
        (ProgramAnswer(0, XML.encode()[:30000], b"", ""), "cut off"),
        (ProgramAnswer(0, b"", b"", ""), "cut off"),
        (ProgramAnswer(0, b"<html></html>", b"", ""), "<html>"),
    ],
)
def test_an_nvidia_smi_that_fails(host: MeasuredHost, answer: ProgramAnswer, reason: str) -> None:
    found = collect("nvidia_smi", replace(host, ask=said({"nvidia-smi": answer})))
    assert isinstance(found, Missing)
    assert reason in found.reason


@pytest.mark.parametrize("tool", ["nvidia_smi", "nvlink"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        # lyulyul/shine-cluster#50: a kernel without the driver after an update
        (
            ProgramAnswer(
                9, b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", b"", ""
            ),
            "driver is not loaded; nvidia-smi ended with status 9: NVIDIA-SMI has failed",
        ),
        # Azure/az-hop#269: packages were upgraded below a running driver
        (
            ProgramAnswer(18, b"Failed to initialize NVML: Driver/library version mismatch\nNVML: 535\n", b"", ""),
            "Driver/library version mismatch",
        ),
        # The same by its words, on standard error, with the status of all other errors
        (
            ProgramAnswer(255, b"", b"Failed to initialize NVML: Driver/library version mismatch\n", ""),
            "version mismatch",
        ),
        # NVIDIA/dcgm-exporter#604
        (
            ProgramAnswer(255, b"Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error\n", b"", ""),
            "device handle for GPU0000:BA:00.0",
        ),
        # The same with the status of a driver that is not loaded: the words count
        *(
            (
                ProgramAnswer(9, f"Unable to do it: {words}\n".encode(), b"", ""),
                f"{meaning}; nvidia-smi ended with status 9",
            )
            for words, meaning in refusals.WORDS.items()
        ),
        (ProgramAnswer(6, b"No devices were found\n", b"", ""), "no GPU was found"),
        (ProgramAnswer(12, b"", b"", ""), "can't be loaded"),
        (ProgramAnswer(15, b"", b"", ""), "fallen off the bus"),
        (ProgramAnswer(16, XML.encode()[:2000], b"", ""), "a GPU must be reset"),
    ],
)  # fmt: skip
def test_an_nvidia_smi_that_says_that_no_gpu_works(
    host: MeasuredHost, tool: str, answer: ProgramAnswer, reason: str
) -> None:
    found = collect(tool, replace(host, ask=said({"nvidia-smi": answer})))
    assert isinstance(found, RefusedMeasurement)
    assert reason in found.reason
    assert "<" not in found.reason


@pytest.mark.parametrize(
    "answer",
    [
        ProgramAnswer(14, XML.encode(), b"", ""),
        ProgramAnswer(14, XML.encode() + b"WARNING: infoROM is corrupted at gpu 0000:97:00.0\n", b"", ""),
        ProgramAnswer(0, b"WARNING: infoROM is corrupted at gpu 0000:97:00.0\n" + XML.encode(), b"", ""),
    ],
)
def test_a_corrupted_inforom_is_said_and_takes_no_node_away(host: MeasuredHost, answer: ProgramAnswer) -> None:
    found = {"nvidia_smi": collect("nvidia_smi", replace(host, ask=said({"nvidia-smi": answer})))}
    judgement = judged("gpu_repair", {**healthy(), **found})
    assert judgement.status is Status.WARN
    assert "infoROM" in judgement.message
    assert judged("gpu_count", {**healthy(), **found}).status is Status.PASS


FOLDER = "usr/lib/x86_64-linux-gnu"
NO_MODULE = ProgramAnswer(1, b"", b"modinfo: ERROR: Module nvidia not found.\n", "")


def driver(host: MeasuredHost, *, loaded: str = "580.95.05", library: str = "580.95.05", folder: str = FOLDER) -> None:
    """The driver's files: `loaded` as the kernel says it; the library as its packages have it."""
    if loaded:
        write(host.root / "sys/module/nvidia/version", f"{loaded}\n")
    write(host.root / "sys/module/ext4/refcnt", "1\n")
    if library:
        write(host.root / folder / f"libnvidia-ml.so.{library}", "")
        (host.root / folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")


@pytest.mark.parametrize(
    ("files", "modinfo", "status", "words"),
    [
        ({}, ProgramAnswer(0, b"580.95.05\n", b"", ""), "pass", "580.95.05"),
        ({"folder": "usr/lib64"}, ProgramAnswer(0, b"580.95.05\n", b"", ""), "pass", "580.95.05"),
        # Azure/az-hop#269: packages were upgraded below a running driver
        (
            {"library": "580.105.08"},
            ProgramAnswer(0, b"580.105.08\n", b"", ""),
            "fail",
            "the loaded driver is 580.95.05, its library 580.105.08: packages were changed below the running driver",
        ),
        # microsoft/azhpc-images#86: the library alone
        (
            {"loaded": "550.90.07"},
            ProgramAnswer(0, b"550.90.07\n", b"", ""),
            "fail",
            "is 550.90.07, its library 580.95.05",
        ),
        ({}, ProgramAnswer(0, b"580.105.08\n", b"", ""), "warn", "05, the module on disk is 580.105.08: after a"),
        ({}, NO_MODULE, "warn", "no module of the driver on disk"),
        # lyulyul/shine-cluster#50: a kernel without the driver after an update
        ({"loaded": ""}, NO_MODULE, "fail", "has no module of it on disk, its library 580.95.05"),
        (
            {"loaded": ""},
            ProgramAnswer(0, b"580.95.05\n", b"", ""),
            "fail",
            "not loaded; its module on disk is 580.95.05",
        ),
        ({"library": ""}, ProgramAnswer(0, b"580.95.05\n", b"", ""), "unknown", "there is no libnvidia-ml.so.1"),
        ({"library": "1.new"}, ProgramAnswer(0, b"580.95.05\n", b"", ""), "unknown", "has no version"),
        ({"loaded": "new"}, ProgramAnswer(0, b"580.95.05\n", b"", ""), "unknown", "no version of it"),
        ({}, ProgramAnswer(None, b"", b"", "modinfo is not installed"), "unknown", "modinfo is not installed"),
        ({}, ProgramAnswer(1, b"", b"modinfo: ERROR: Permission denied", ""), "unknown", "Permission denied"),
        ({}, ProgramAnswer(0, b"\n", b"", ""), "unknown", "modinfo ended with status 0"),
    ],
)  # fmt: skip
def test_the_driver_in_kernel_library_and_on_disk(
    host: MeasuredHost, files: dict[str, str], modinfo: ProgramAnswer, status: str, words: str
) -> None:
    driver(host, **files)
    found = collect("driver", replace(host, ask=said({"modinfo": modinfo})))
    judgement = judged("gpu_driver", {**healthy(), "driver": found})
    assert judgement.status.value == status, judgement
    assert words in judgement.message


def test_the_driver_is_found_where_debian_s_alternatives_have_it_and_sys_has_no_version(host: MeasuredHost) -> None:
    driver(host, loaded="", library="")
    (host.root / "sys/module/nvidia").mkdir()
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
    write(host.root / "proc/driver/nvidia/version", line + "GCC version:  gcc version 12.2.0\n")
    real = host.root / FOLDER / "nvidia/current/libnvidia-ml.so.580.95.05"
    write(real, "")
    (real.parent / "libnvidia-ml.so.1").symlink_to(real.name)
    write(host.root / "etc/alternatives/other", "")
    alternative = host.root / "etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu"
    alternative.symlink_to(real.parent / "libnvidia-ml.so.1")
    (host.root / FOLDER / "libnvidia-ml.so.1").symlink_to(alternative)
    found = collect("driver", replace(host, ask=said({"modinfo": ProgramAnswer(0, b"580.95.05\n", b"", "")})))
    assert found == {"loaded": "580.95.05", "library": "580.95.05", "on_disk": "580.95.05"}


DIAGNOSIS = json.dumps({"DCGM Diagnostic": healthy()["dcgm_short"], "Driver Version Detected": "580"}, indent=1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ProgramAnswer(-6, DIAGNOSIS.encode(), b"", ""), "signal 6"),
        (ProgramAnswer(0, DIAGNOSIS.encode()[:300], b"", ""), "cut off"),
        (
            ProgramAnswer(1, b"Error: unable to establish a connection to the specified host", b"", ""),
            "unable to establish",
        ),
        (ProgramAnswer(1, b'{"DCGM Diagnostic": {"runtime_error": "busy"}}', b"", ""), "busy"),
        # DCGM's own statuses: dcgmi/Command.cpp and dcgmi/Diag.cpp
        (
            ProgramAnswer(235, b"Error: unable to establish a connection to the specified host: localhost\n", b"", ""),
            "DCGM's service nvidia-dcgm does not answer (-21); dcgmi ended with status 235: ",
        ),
        (
            ProgramAnswer(
                217,
                b'{"DCGM Diagnostic": {"runtime_error": "Error: Unable to complete diagnostic. Return: (-39)"}}',
                b"",
                "",
            ),
            "another diagnosis runs (-39); dcgmi ended with status 217: dcgmi has run no diagnosis: Error: Unable to",
        ),
        (ProgramAnswer(254, b"", b"Error: Couldn't find match for argument.", ""), "arguments of dcgmi are wrong (-2)"),
        (ProgramAnswer(143, b"", b"", ""), "dcgmi ended with status 143"),
        (ProgramAnswer(0, b"", b"", ""), "cut off"),
    ],
)
def test_a_dcgm_that_fails(host: MeasuredHost, answer: ProgramAnswer, reason: str) -> None:
    found = collect("dcgm_short", replace(host, ask=said({"dcgmi diag -r 1 -j": answer})))
    assert isinstance(found, Missing)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("status", "reason"), [(238, "can't be reached"), (237, "must be reset"), (205, "out of service")]
)
def test_a_dcgm_that_says_that_a_gpu_does_not_work(host: MeasuredHost, status: int, reason: str) -> None:
    answer = ProgramAnswer(
        status, b'{"DCGM Diagnostic": {"runtime_error": "Error: Unable to complete diagnostic."}}', b"", ""
    )
    found = collect("dcgm_short", replace(host, ask=said({"dcgmi diag -r 1 -j": answer})))
    assert isinstance(found, RefusedMeasurement)
    assert reason in found.reason
    assert judged("dcgm_short", {"dcgm_short": found}).status is Status.FAIL


@pytest.mark.parametrize("name", ["dcgm_short", "dcgm_long"])
@pytest.mark.parametrize(
    "words",
    [
        # aws/aws-parallelcluster-cookbook#3183, and the other sentences of DCGM 4.6
        "GPU 0's MIG configuration is incompatible with the diagnostic because it prevents access to the entire GPU.",
        "Cannot run diagnostic: CUDA does not support enumerating GPUs with MIG mode enabled, yet GPU 1 is MIG enabled",
        "Cannot run diagnostic: MIG is enabled, but no compute instances are configured.",
    ],
)
def test_a_dcgm_that_does_not_test_gpus_that_are_divided(host: MeasuredHost, name: str, words: str) -> None:
    error = f"Error: Unable to complete diagnostic for group 2147483647. Return: (-30): NVVS error\n{words}"
    answer = ProgramAnswer(
        226, json.dumps({"DCGM Diagnostic": {"runtime_error": error, "version": "4.6.0"}}).encode(), b"", ""
    )
    found = collect(name, replace(host, ask=said({"dcgmi diag": answer})))
    judgement = judged(name, {name: found})
    assert judgement.status is Status.SKIP
    assert words[:60] in judgement.message


def test_dcgm_ends_with_a_status_of_its_own_where_a_test_fails(host: MeasuredHost) -> None:
    answer = ProgramAnswer(226, b"Warning: x\n" + DIAGNOSIS.replace('"Pass"', '"Fail"').encode(), b"", "")
    found = collect("dcgm_long", replace(host, ask=said({"dcgmi diag -r 3 -j": answer})))
    assert judged("dcgm_long", {"dcgm_long": found}).status is Status.FAIL


LOG = """\
[    0.000000] Linux version 6.1
[  400.000000] NVRM: Xid (PCI:0000:18:00): 31, pid=4242, name=python, Ch 00000008
[ 4000.500000] NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.
[ 4100.500000] NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.
"""


def test_xids_with_their_age_by_the_time_since_the_boot(host: MeasuredHost, clock: BootClock) -> None:
    clock.offset -= 1e6  # an operator set the clock
    found = collect("kernel_log", replace(host, ask=said({"dmesg": LOG})))
    assert found["whole"] is True
    assert [(each["xid"], each["count"], each["age_s"]) for each in found["xids"]] == [(31, 1, 4600.0), (79, 2, 899.5)]
    assert judged("gpu_xid", {"kernel_log": found}).status is Status.FAIL


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        # An instance of a GPU that is divided: NVIDIA's open driver
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, Contained: (0x9). RST: No, D-RST: No", "warn", "GPU-I:05"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, Contained: (0x9). RST: Yes, D-RST: No", "fail", "Xid 94"),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 95, pid=9, Uncontained ECC error", "fail", "GPU-CI:02"),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:01): 13, pid=9, name=a, Graphics Exception", "pass", ""),
        # NVLink 5 itself reports whether it is fatal: leptonai/gpud#1160
        ("NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6)", "fail", "Xid 149"),
        ("NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x025001c6)", "warn", "Xid 149"),
        ("NVRM: Xid (PCI:0000:dc:00): 145, RLW_REMAP Non-fatal XC0 i0 Link 03 (0x00000004)", "warn", "Xid 145"),
        ("NVRM: Xid (PCI:0000:dc:00): 13, Fatal exception of a kind that nobody has seen", "warn", "Xid 13"),
        ("NVRM: Xid (PCI:0000:97:00): 93, pid='<unknown>', name=<unknown>, Inforom is corrupted", "warn", "Inforom"),
        # NVSwitches: leptonai/gpud#338
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "fail", "SXid 20034"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 27 RX Error Rate", "warn", "SXid 20009"),
        ("nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}", "warn", "SXid 12028"),
        # Without a number: NVIDIA/NVSentinel#155, NVIDIA/open-gpu-kernel-modules#1151
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "               NVRM: fallen off the bus and is not responding to commands.",
            "fail",
            "0000:b3:00.0",
        ),
        ("NVRM: GPU 0000:2a:00.0: GPU has fallen off the bus.", "fail", "2a:00.0"),
        ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", "fail", "0000:09:00.0"),
        ("usb 1-1: device descriptor read/64, error -71, has fallen off the bus", "pass", ""),
    ],
)  # fmt: skip
def test_what_the_driver_says_of_a_gpu(host: MeasuredHost, lines: str, status: str, words: str) -> None:
    text = f"[    0.000000] Linux version 6.1\n[  400.000000] {lines}\n[  401.000000] the next message\n"
    found = judged("gpu_xid", {"kernel_log": collect("kernel_log", replace(host, ask=said({"dmesg": text})))})
    assert found.status.value == status, found
    assert words in found.message


def test_a_fatal_event_is_not_forgotten_for_a_later_one_that_is_not(host: MeasuredHost) -> None:
    text = "[    0.000000] Linux\n" + "".join(
        f"[  40{number}.000000] NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT {word} XC0\n"
        for number, word in enumerate(("Nonfatal", "Fatal", "Nonfatal"))
    )
    found = judged("gpu_xid", {"kernel_log": collect("kernel_log", replace(host, ask=said({"dmesg": text})))})
    assert found.status is Status.FAIL


def test_a_buffer_that_lost_its_beginning_is_replaced_by_the_journal(host: MeasuredHost) -> None:
    late = "".join(LOG.splitlines(keepends=True)[1:2])
    assert collect("kernel_log", replace(host, ask=said({"dmesg": late, "journalctl": LOG})))["whole"] is True
    alone = collect("kernel_log", replace(host, ask=said({"dmesg": late})))
    assert (alone["whole"], alone["covers_s"]) == (False, 4600.0)


@pytest.mark.parametrize("answers", [{}, {"dmesg": ""}, {"dmesg": "", "journalctl": "-- No entries --\n"}], ids=str)
def test_without_a_kernel_log_there_is_no_measurement(host: MeasuredHost, answers: Mapping[str, Any]) -> None:
    assert isinstance(collect("kernel_log", replace(host, ask=said(answers))), Missing)


def grow(host: MeasuredHost, counter: str, value: int) -> None:
    (host.root / "sys/class/infiniband/mlx5_3/ports/1/counters" / counter).write_text(f"{value}\n")


def window(host: MeasuredHost) -> dict[str, Any]:
    found: dict[str, Any] = collect("rdma_errors", host)["mlx5_3"]
    return found


def test_the_window_of_the_counters(host: MeasuredHost, clock: BootClock) -> None:
    grow(host, "link_downed", 2)
    first = window(host)
    assert (first["seconds"], first["since_boot"], first["grown"]["link_downed"]) == (5000.0, True, 2)
    clock.now += 300
    assert (window(host)["seconds"], window(host)["grown"]["link_downed"]) == (300.0, 0)
    clock.now += 300
    grow(host, "link_downed", 4)
    second = window(host)
    assert (second["seconds"], second["since_boot"], second["grown"]["link_downed"]) == (600.0, False, 2)
    assert judged(
        "rdma_errors", {"rdma_errors": {"mlx5_3": second}}, replace(NODE, rdma_devices=("mlx5_3",))
    ).status is (Status.FAIL)
    clock.now += 3600
    window(host)
    clock.now += 60
    assert window(host)["grown"]["link_downed"] == 0, "samples are forgotten after an hour"


def test_counters_that_were_set_back_start_a_new_window(host: MeasuredHost, clock: BootClock) -> None:
    grow(host, "symbol_error", 50)
    window(host)
    clock.now += 100
    grow(host, "symbol_error", 3)
    assert window(host)["seconds"] is None
    clock.now += 100
    grow(host, "symbol_error", 5)
    after = window(host)
    assert (after["seconds"], after["grown"]["symbol_error"]) == (100.0, 2)
    assert collect("rdma_errors", host)["mlx5_0"]["seconds"] == 200.0, "the window of the other device goes on"


def test_a_restart_starts_a_new_window(host: MeasuredHost, clock: BootClock) -> None:
    window(host)
    write(host.root / "proc/sys/kernel/random/boot_id", "another\n")
    clock.now = 100.0
    assert (window(host)["seconds"], window(host)["since_boot"]) == (100.0, False)


@pytest.mark.parametrize("kept", ["", "{", "[]", "17", '[{"boot": 1}]', f'[{{"boot": "{BOOT}", "at": 1}}]'])
def test_a_damaged_file_of_samples_is_no_window(host: MeasuredHost, kept: str) -> None:
    write(host.state / "rdma.json", kept)
    assert window(host)["since_boot"] is True


def test_a_folder_that_can_t_be_written_costs_the_window_only(host: MeasuredHost) -> None:
    write(host.state, "a file in its place")
    assert window(host)["since_boot"] is True
    assert collect("clock_jump", host) == {"seconds": None}


def test_a_counter_that_is_missing(host: MeasuredHost) -> None:
    (host.root / "sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error").unlink()
    assert window(host)["grown"]["symbol_error"] is None


def test_a_clock_that_jumps(host: MeasuredHost, clock: BootClock) -> None:
    assert collect("clock_jump", host) == {"seconds": None}
    clock.now += 60
    assert collect("clock_jump", host) == {"seconds": 0.0}
    clock.offset -= 7200
    assert collect("clock_jump", host) == {"seconds": -7200.0}


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"chronyc": "A9FEA9FE,169.254.169.254,3,1.5,-0.000012,0,0,0,0,0,0,0,0,Normal\n"}, (True, -0.000012)),
        ({"chronyc": "00000000,,0,0.0,0.000000,0,0,0,0,0,1,1,0,Not synchronised\n"}, (False, 0.0)),
        ({"chronyc": "506 Cannot talk to daemon\n", "timedatectl": "yes\n"}, (True, None)),
        ({"timedatectl": "no\n"}, (False, None)),
    ],
)
def test_the_clock(host: MeasuredHost, answers: Mapping[str, str], found: Any) -> None:
    measured = collect("clock", replace(host, ask=said(answers)))
    assert (measured["synchronised"], measured["offset_s"]) == found


def test_services(host: MeasuredHost) -> None:
    text = (
        "Id=munge.service\nLoadState=loaded\nActiveState=active\n\n"
        "Id=slurmd.service\nLoadState=not-found\nActiveState=inactive\n"
    )
    answers = {
        "systemctl show": text,
        "systemctl list-units": "a.service loaded failed failed A\nb.mount loaded failed\n",
    }
    assert collect("services", replace(host, ask=said(answers))) == {"munge": "active", "slurmd": "not installed"}
    assert collect("failed_units", replace(host, ask=said(answers))) == ["a.service", "b.mount"]
    assert isinstance(collect("failed_units", host), Missing)


def test_systemd_that_reads_its_units_again_is_asked_again(host: MeasuredHost) -> None:
    block = "Id={}.service\nLoadState=loaded\nActiveState=active\n"
    known = "\n".join(map(block.format, ("munge", "slurmd")))
    answers = iter(["\n", "\n", known])

    def systemd_double(_argv: list[str], _seconds: float, _most: int) -> ProgramAnswer:
        return ProgramAnswer(0, next(answers).encode(), b"", "")

    assert collect("services", replace(host, ask=systemd_double)) == {"munge": "active", "slurmd": "active"}


def process(root: Path, pid: int, uid: int, group: str, ticks: int = 0) -> None:
    write(root / f"proc/{pid}/status", f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    write(root / f"proc/{pid}/cgroup", f"0::{group}\n")
    write(root / f"proc/{pid}/stat", f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {ticks} {ticks} 0 0\n")


def test_processes_that_a_job_left_behind(host: MeasuredHost) -> None:
    process(host.root, 10, 0, "/system.slice/sshd.service")
    process(host.root, 11, 65534, "/system.slice/x.service")
    process(host.root, 12, 6001, "/system.slice/slurmstepd.scope/job_17/step_0/user/task_0")
    process(host.root, 13, 6001, "/user.slice/user-6001.slice/user@6001.service/init.scope")
    assert collect("leftovers", host)["processes"] == 0
    process(host.root, 14, 6002, "/user.slice/user-6002.slice/session-3.scope", os.sysconf("SC_CLK_TCK"))
    assert collect("leftovers", host) == {"processes": 1, "users": [6002], "cpu_s": 2.0}


def test_what_a_collector_did_not_foresee_is_a_reason(host: MeasuredHost) -> None:
    def breaks(_host: MeasuredHost, _seconds: float) -> object:
        raise RuntimeError("strange")

    assert measure(breaks, host, 1.0) == Missing("measuring failed: RuntimeError: strange")
