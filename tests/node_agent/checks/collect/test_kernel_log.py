"""What the kernel's log reports of GPUs, and how long it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.collect.place import MeasuredHost
from gpucluster.node_agent.checks.model import Missing, Status
from tests.node_agent.checks.collect.measured_tree import BootClock, collect, said
from tests.node_agent.checks.measured import judged

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
