"""What the judges of RDMA devices report of planted faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.judges.rdma import LIMITS
from gpucluster.node_agent.checks.model import Status
from tests.node_agent.checks.judges.results import FAIL, PASS, SKIP, WARN
from tests.node_agent.checks.measured import NODE, healthy, judged, planted


@pytest.mark.parametrize(
    ("counter", "grown", "seconds", "since_boot", "status"),
    [
        ("link_downed", 1, 1800.0, False, WARN),
        ("link_downed", 2, 1800.0, False, FAIL),
        ("link_downed", 2, 600.0, True, WARN),  # the host sets it up
        ("excessive_buffer_overrun_errors", 1, 60.0, False, FAIL),
        ("local_link_integrity_errors", 1, 60.0, False, FAIL),
        # A count since the boot proves nothing about today, and nothing at all where the counter has reached its end:
        # a healthy H100 host (leptonai/gpud) shows 15 and 255.
        ("local_link_integrity_errors", 1, 60.0, True, WARN),
        ("excessive_buffer_overrun_errors", 15, 60.0, True, PASS),
        ("link_downed", 255, 600.0, True, PASS),
        ("symbol_error", 65535, 600.0, True, PASS),
        ("symbol_error", 100, 1800.0, False, WARN),
        ("symbol_error", 121, 1800.0, False, FAIL),
        ("symbol_error", 121, 7200.0, True, WARN),
        ("link_error_recovery", 299, 1800.0, False, PASS),
        ("link_error_recovery", 301, 1800.0, False, WARN),
        ("rnr_nak_retry_err", 1, 1800.0, False, WARN),
        ("roce_slow_restart", 1000, 1800.0, False, PASS),
    ],
)
def test_counters_of_errors(counter: str, grown: int, seconds: float, since_boot: bool, status: Status) -> None:
    measurements = healthy()
    window = {"seconds": seconds, "since_boot": since_boot, "grown": {**dict.fromkeys(LIMITS, 0), counter: grown}}
    measurements["rdma_errors"]["mlx5_9"] = window
    found = judged("rdma_errors", measurements)
    assert found.status is status, found
    assert status is PASS or "mlx5_9" in found.message


def test_devices_with_unknown_counters_are_skipped() -> None:
    found = judged("rdma_errors", healthy(), replace(NODE, rdma_devices=("ionic_0",)))
    assert found.status is SKIP


@pytest.mark.parametrize(
    ("check", "path", "value", "status"),
    [
        ("rdma_devices", ("rdma",), {"mlx5_0": {}}, FAIL),
        ("rdma_links", ("rdma", "mlx5_3", "state"), "1: DOWN", FAIL),
        ("rdma_links", ("rdma", "mlx5_3", "phys_state"), "3: Disabled", FAIL),
        ("rdma_speed", ("rdma", "mlx5_3", "rate"), "200 Gb/sec (4X HDR)", FAIL),
        ("rdma_pcie", ("rdma", "mlx5_3", "pcie_width"), "8", WARN),
    ],
)
def test_planted_faults(check: str, path: tuple[Any, ...], value: Any, status: Status) -> None:
    found = judged(check, planted(*path, value=value))
    assert found.status is status, found
