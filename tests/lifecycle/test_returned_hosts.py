"""A node on a physical host that was reported takes no jobs until its checks have passed.

Terraform's state, Slurm and the checks are doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.events import Event
from gpucluster.lifecycle.host_reports import ReportedHost
from gpucluster.lifecycle.returned_hosts import ReturnedHosts
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.rules.reasons import RETURNED
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.verdict import of_findings

RECORD = ReportedHost("compute-1", "ocid1.old", "gpu_ecc: 3", "2026-11-29T08:00:00+00:00")
HOSTS = ("compute-1", "compute-2")
RUN: Any = SimpleNamespace(phase=lambda _name: nullcontext())
DEPLOYMENT: Any = SimpleNamespace(
    members={"compute": [SimpleNamespace(id=f"ocid1.{number}", name=name) for number, name in enumerate(HOSTS)]}
)


class World:
    """Stands for Terraform's state, Slurm and the checks.

    Args:
        physical: the physical host by the instance's OCID.
        bad: the nodes whose full checks fail.
    """

    def __init__(
        self, physical: Mapping[str, str], *bad: str, status: Status = Status.FAIL, slurm: bool = True
    ) -> None:
        self.identity = {
            "contract_version": 1,
            "physical_hosts": dict(physical),
            "reported_hosts": {"host-1": RECORD.to_json()},
        }
        self.bad, self.status = bad, status
        self.told: list[Any] = []
        self.events: list[Event] = []
        self.draining: Any = SimpleNamespace(hold=self.hold, end_hold=self.end_hold) if slurm else None

    def outputs(self) -> dict[str, Any]:
        return {"identity": self.identity}

    def record(self, _terraform: Any, *, reported_hosts: Mapping[str, str]) -> None:
        self.told.append("record")
        self.identity["reported_hosts"] = dict(reported_hosts)

    def hold(self, reasons: Mapping[str, str]) -> None:
        self.told.append(("hold", dict(reasons)))

    def end_hold(self, names: Collection[str]) -> None:
        self.told.append(("end_hold", sorted(names)))

    def verdict(self, _deployment: Any, _run: Any, request: Any) -> Any:
        self.told.append(("check", request.level, request.nodes, request.measured))
        findings = [
            Finding("gpu_ecc", name, self.status if name in self.bad else Status.PASS, "seen") for name in HOSTS
        ]
        return of_findings(findings, HOSTS, Level.FULL)

    def examine(self) -> None:
        as_any: Any = self
        ReturnedHosts(
            draining=self.draining, provisioning=as_any, verification=as_any, on_event=self.events.append
        ).examine(RUN, as_any, DEPLOYMENT)

    def warnings(self) -> str:
        return "\n".join(each.message for each in self.events if each.status == "warning")


@pytest.mark.parametrize("physical", [{}, {"ocid1.1": "host-2"}, {"ocid1.old": "host-1"}])
def test_nodes_on_other_hosts_are_left_alone(physical: dict[str, str]) -> None:
    world = World(physical)
    world.examine()
    assert (world.told, world.events) == ([], [])


def test_one_that_came_back_is_held_and_let_in_when_its_full_checks_pass() -> None:
    world = World({"ocid1.1": "host-1", "ocid1.0": "host-2"})
    world.examine()
    assert world.told == [
        ("hold", {"compute-2": f"{RETURNED} gpu_ecc: 3"}),
        ("check", Level.FULL, "compute-2", False),
        "record",
        ("end_hold", ["compute-2"]),
    ]
    assert "physical host that node compute-1 had" in world.warnings()
    world.told.clear()
    world.examine()
    assert world.told == [], "the state has that it was proven"


@pytest.mark.parametrize("status", [Status.FAIL, Status.UNKNOWN])
def test_one_that_does_not_pass_stays_out_of_service(status: Status) -> None:
    world = World({"ocid1.1": "host-1"}, "compute-2", status=status)
    world.examine()
    assert [each[0] for each in world.told] == ["hold", "check"]
    assert "gpucluster replace compute-2" in world.warnings()
    world.examine()
    assert len(world.told) == 4, "the next apply looks again"


def test_a_fault_of_another_node_keeps_none_out() -> None:
    world = World({"ocid1.1": "host-1"}, "compute-1")
    world.examine()
    assert world.told[-1] == ("end_hold", ["compute-2"])


def test_without_slurm_it_is_a_warning() -> None:
    world = World({"ocid1.1": "host-1"}, slurm=False)
    world.examine()
    assert world.told == []
    assert "found bad" in world.warnings()
