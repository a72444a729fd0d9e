"""Measurements of GPUs: outputs of nvidia-smi and DCGM, and versions of the driver."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpucluster.node_agent.checks import refusals
from gpucluster.node_agent.checks.collect.place import MeasuredHost
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement, Status
from gpucluster.node_agent.programs import ProgramAnswer
from tests.node_agent.checks.collect.measured_tree import collect, said, write
from tests.node_agent.checks.measured import DATA, NODE, XML, healthy, judged


def test_a_gpu_that_fell_off_the_bus(host: MeasuredHost) -> None:
    write(host.root / "sys/bus/pci/devices/0000:2a:00.0/config", b"\xff" * 64)
    found = judged("gpu_bus", {"pci_gpus": collect("pci_gpus", host)}, replace(NODE, gpus=2))
    assert (found.status, found.message) == (Status.FAIL, "GPUs that no longer answer: 0000:2a:00.0")


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
