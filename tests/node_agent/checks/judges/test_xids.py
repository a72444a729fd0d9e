"""What the judge of the driver's log makes of Xids."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent.checks.model import BEYOND_REBOOT, Status
from tests.node_agent.checks.judges.results import FAIL, PASS, UNKNOWN, WARN
from tests.node_agent.checks.measured import healthy, judged


def xid(number: int, text: str = "pid=77, name=python", *, whole: bool = True) -> dict[str, Any]:
    event = {"xid": number, "pci": "0000:18:00", "fatal": False, "count": 2, "age_s": 90.0, "text": text}
    log = {"covers_s": 600.0, "whole": whole, "xids": [event], "sxids": [], "faults": []}
    return {**healthy(), "kernel_log": log}


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *[(number, PASS) for number in (13, 31, 43, 45, 8, 68, 69)],
        *[(number, WARN) for number in (63, 92, 93, 94, 56, 61, 149, 999)],
        *[(number, FAIL) for number in (48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143)],
    ],
)
def test_xids(number: int, status: Status) -> None:
    found = judged("gpu_xid", xid(number))
    assert found.status is status
    if status is not PASS:
        assert f"Xid {number} on 0000:18:00, 2 times, last 2 min ago" in found.message


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", FAIL),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", PASS),
        ("something else", WARN),
    ],
)
def test_what_the_driver_wants(text: str, status: Status) -> None:
    assert judged("gpu_xid", xid(154, text)).status is status


def test_a_log_that_lost_its_beginning_proves_faults_only() -> None:
    assert judged("gpu_xid", xid(79, whole=False)).status is FAIL
    assert judged("gpu_xid", xid(31, whole=False)).status is UNKNOWN
    assert judged("gpu_xid", xid(94, whole=False)).status is UNKNOWN


@pytest.mark.parametrize(("number", "beyond"), [(54, True), (79, False), (48, False), (31, False)])
def test_an_xid_that_asks_for_hands_on_the_machine_states_that_no_reboot_fixes_it(number: int, beyond: bool) -> None:
    assert judged("gpu_xid", xid(number)).evidence.get(BEYOND_REBOOT, False) is beyond
