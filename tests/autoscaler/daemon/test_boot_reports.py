"""What booting nodes report, as the health service keeps it, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.boot_reports import BootReports
from gpucluster.autoscaler.decide.types import ClaimState, NodeClaim
from gpucluster.controller.health.policy import Moment
from gpucluster.controller.health.store import BOOTING, ReportStore
from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status

ADDRESS, NODE, REASON = "10.0.0.7", "gpu-e1", "mounts: nothing is mounted there"
AT = 1000.0


def claim(instance: str, asked_at: float, state: ClaimState = ClaimState.RUNNING, node: str = NODE) -> NodeClaim:
    return NodeClaim(node, "gpu", 1, "", state, asked_at, asked_at, instance_id=instance)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One node was unfit."""
    report = HostReport(NODE, Profile.BOOT, AT, 1.0, "boot", (Finding("mounts", NODE, Status.FAIL, "x"),))
    ReportStore(tmp_path, interval=300).keep_booting(ADDRESS, report, Moment(AT, "boot", 5.0), REASON)
    return tmp_path / BOOTING


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ([claim("a", AT - 60)], {"a": REASON}),
        # Launched after the report: the cloud has given it the address of the one before.
        ([claim("b", AT + 1)], {}),
        ([claim("c", AT - 60, ClaimState.UP)], {}),
        ([claim("d", AT - 60, node="gpu-e2")], {}),
        ([claim("elsewhere", AT - 60)], {}),
        ([claim("", AT - 60)], {}),
    ],
)
def test_a_report_is_that_of_the_instance_that_had_the_address_then(
    folder: Path, claims: list[NodeClaim], found: dict[str, str]
) -> None:
    addresses = {"elsewhere": "10.0.0.8"}
    assert BootReports(folder, lambda instance: addresses.get(instance, ADDRESS)).unfit(claims) == found


def test_files_without_content_blame_no_node(folder: Path) -> None:
    (folder / "x.json").write_text("[")
    (folder / "y.json").write_text('{"node": "gpu-e1", "address": "10.0.0.9", "reason": "old"}')
    assert BootReports(folder, lambda _instance: "10.0.0.9").unfit([claim("a", AT - 60)]) == {}
