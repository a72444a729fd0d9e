"""`scontrol reboot` as the health service asks for it, with the real Slurm and the role's configuration.

The program that reboots is a double (`slurm_in_container.reboots`): what a host does when it reboots, and how long that
takes, only a real one shows.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster import shapes
from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.rules import slurm_nodes
from gpucluster.node_agent.rules import reasons
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, SHARED_MACHINE, in_container, pool, render

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

NODES = ("cpu-1", "cpu-2")
REASON = reasons.of_checks([("gpu_xid", "Xid 79")], again=False, reboot_first=True)
GIVEN_UP = reasons.of_checks([("gpu_xid", "Xid 79")], again=False, outcome="it did not come back from a reboot")


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    """What the real Slurm reported."""
    double = "/run/gpucluster-test/reboot-double"
    pools = [pool(shapes.catalogue()["VM.Standard.E5.Flex"], NODES, name="cpu")]
    files = render(
        pools,
        emulated=True,
        extra_config={**SHARED_MACHINE, "RebootProgram": double, "ResumeTimeout": 1800},
        directories={"spool": "/var/lib/slurm/slurmd/%n"},
        checks=False,
    )
    return in_container(
        {
            "controller": ADDRESS,
            "hosts": {CONTROLLER: ADDRESS} | {node: f"192.0.2.{number}" for number, node in enumerate(NODES, start=2)},
            "nodes": NODES,
            "devices": [],
            "emulated_files": [],
            "files": files,
            "reboots": {
                "program": double,
                "reason": REASON,
                "given_up": GIVEN_UP,
                "patience": ["ResumeTimeout=1800", "ResumeTimeout=5"],
            },
        }
    )


def seen(slurm: dict[str, Any], name: str) -> SchedulerNode:
    """As the health service reads it."""
    line = slurm_nodes.parse_line(slurm[name])
    return SchedulerNode(line.name, "cpu", line.flags, line.reason)


def test_the_node_without_a_job_is_told_at_once_and_keeps_its_drain(slurm: dict[str, Any]) -> None:
    assert slurm["told"] == ["cpu-1"]
    node = seen(slurm, "issued")
    assert (node.ours, node.rebooting, node.silent, node.away) == (True, True, True, False)
    assert node.reason == f"{REASON} : reboot issued"


def test_it_comes_back_drained_and_the_checks_decide(slurm: dict[str, Any]) -> None:
    node = seen(slurm, "back")
    assert (node.ours, node.rebooting, node.silent, node.busy) == (True, False, False, False)
    assert reasons.reboot_first(node.reason)
    assert not reasons.reboot_timed_out(node.reason)


def test_a_job_is_never_ended_by_it(slurm: dict[str, Any]) -> None:
    node = seen(slurm, "waits")
    assert (node.ours, node.rebooting, node.busy) == (True, True, True)
    assert slurm["told in the end"] == ["cpu-1", "cpu-2"]
    assert not seen(slurm, "issued after the job").busy


def test_a_node_that_does_not_come_back_is_seen_as_lost_and_stays_drained_when_it_comes_late(
    slurm: dict[str, Any],
) -> None:
    node = seen(slurm, "given up")
    assert node.lost or (node.ours and node.silent)
    assert reasons.reboot_timed_out(node.reason)
    late = seen(slurm, "back late")
    assert (late.ours, late.silent) == (True, False)
    assert late.reason.startswith(GIVEN_UP)
