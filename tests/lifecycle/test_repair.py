"""`verify --fix` as a whole: what it asks for, in which order, and what it never does. The health service decides
as the real one; how everything else works that is a double here is tested where it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gpucluster.controller.health.control import Control
from gpucluster.controller.health.policy import PolicySettings
from gpucluster.controller.health.policy import SchedulerNode as ServiceNode
from gpucluster.controller.health.store import ReportStore
from gpucluster.errors import InputError, ToolError, VerifyError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.host_reports import HostFault
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.repair import Fix, Repair, findings_of, pools_of, standing
from gpucluster.lifecycle.replace import ElasticReplacement
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.rules.reasons import CHANGED, FAILED_CHECKS, FOR_A_PERSON, REBOOT_FIRST, RETURNED
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import Draining, SlurmNode
from gpucluster.operations.health import HealthService
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.spec import loads
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.repair import Standing
from gpucluster.verdict.verdict import Verdict, of_findings
from gpucluster.workspace.run import Run
from tests.controller.health.doubles import IDLE, ControllerClock, SlurmDouble
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL.replace("    count: 2\n", "    count: 2\n    max_count: 4\n", 1), "cluster.yml")
HOSTS = ("demo-controller", "compute-1", "compute-2")
BAD = f"{FAILED_CHECKS} home_share: seen"


class ClusterDouble:
    """Stands for everything outside of this machine: nodes that are bad until they get another machine. The health
    service decides as the real one; Slurm, the connection, the autoscaler and Terraform are doubles.

    Args:
        percent: how many nodes of a pool the breaker lets the service drain.
        shadow: the service is in shadow mode.
        dies: name of the step at which the run is killed.
    """

    def __init__(self, folder: Path, *bad: str, percent: int = 100, shadow: bool = False, dies: str = "") -> None:
        names = ("compute-1", "compute-2", "compute-e1")
        self.slurm = SlurmDouble({name: ServiceNode(name, "compute", IDLE, instance=f"{name} 1") for name in names})
        settings, store = PolicySettings(percent, shadow), ReportStore(folder / "health", interval=300)
        self.control = Control(
            store, self.slurm, settings, drains=(), moment=ControllerClock(), say=lambda _words: None
        )
        self.bad = set(bad)
        self.dies = dies
        self.stays_bad = self.busy = False
        self.told: list[str] = []
        self.reported: dict[str, str] = {}
        self.check_name = "home_share"

    def step(self, words: str) -> None:
        self.told.append(words)
        if self.dies and words.startswith(self.dies):
            self.dies = ""
            raise KeyboardInterrupt

    # --- as the connection to the controller -----

    def ask(self, _command: str, *, text: str, timeout: float) -> Completed:
        request, before = json.loads(text), len(self.slurm.changes)
        findings = [Finding.from_dict(each) for each in request["findings"]]
        outlook = self.control.react(findings, shadow=request["shadow"])
        for verb, name, _reason in self.slurm.changes[before:]:
            self.step(f"{verb} {name}")
        return Completed((), 0, json.dumps({"decisions": [each.to_dict() for each in outlook.carried]}), "")

    # --- as the draining -----

    def nodes(self) -> dict[str, SlurmNode]:
        return {
            name: SlurmNode("drained" if node.drained else "idle", node.reason or "none")
            for name, node in self.slurm.state.items()
        }

    def drained_by(self, name: str, reason: str) -> None:
        node = self.slurm.state[name]
        self.slurm.state[name] = dataclasses.replace(node, flags=node.flags | {"DRAIN"}, reason=reason)

    # --- as the autoscaler and Terraform -----

    def faulty(self) -> dict[str, str]:
        return {name: node.reason for name, node in self.slurm.state.items() if node.drained}

    def replace(self, nodes: Sequence[str], _timeout: float, faults: Mapping[str, HostFault]) -> None:
        if self.busy:
            raise ToolError("job 7 of alice on compute-e1")
        for name in nodes:
            self.reported |= {name: faults[name].reason} if name in faults else {}
            self.step(f"terminate {name}")
            del self.slurm.state[name]
            self.bad.discard(name)

    def recreate(
        self, run: Run, nodes: Sequence[str], drain_timeout: float, faults: Mapping[str, HostFault]
    ) -> Deployment:
        for name in nodes:
            self.reported |= {name: faults[name].reason} if name in faults else {}
            self.step(f"recreate {name}")
            if not self.stays_bad:
                self.bad.discard(name)
        return cast(Deployment, None)

    # --- as the hosts -----

    def check(self, deployment: Deployment) -> Verdict:
        self.step("check")
        findings = [
            Finding(self.check_name, host, Status.FAIL if host in self.bad else Status.PASS, "seen") for host in HOSTS
        ]
        if "compute-e1" in self.bad:
            findings.append(Finding(self.check_name, "compute-e1", Status.FAIL, "seen"))
        serving = not any(self.slurm.state[name].drained for name in ("compute-1", "compute-2"))
        findings.append(Finding("job", "compute", Status.PASS if serving else Status.FAIL, "seen"))
        return of_findings(findings, HOSTS, Level.QUICK)


def repair_of(world: ClusterDouble, events: list[Event] | None = None) -> Repair:
    return Repair(
        spec=SPEC,
        health=HealthService(cast(ControllerConnection, world)),
        draining=cast(Draining, world),
        elastic=cast(ElasticReplacement, world),
        recreate=world.recreate,
        on_event=events.append if events is not None else ignore,
    )


def repaired(world: ClusterDouble, tmp_path: Path, fix: Fix, events: list[Event] | None = None) -> Verdict:
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    repair = repair_of(world, events)
    deployment: Any = None
    verdict = world.check(deployment)
    verdict, _plan = repair.run(Run("verify", paths, ignore), deployment, verdict, world.check, fix)
    return verdict


def test_nothing_is_done_to_a_good_cluster(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path)
    assert repaired(world, tmp_path, Fix()).passed
    assert world.told == ["check"]


def test_an_elastic_node_is_drained_terminated_and_the_rest_is_proven_again(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1")
    verdict = repaired(world, tmp_path, Fix())
    assert verdict.passed
    assert world.told == ["check", "drain compute-e1", "terminate compute-e1", "check"]
    assert "compute-e1" not in {finding.subject for finding in findings_of(verdict)}


def test_a_permanent_node_is_recreated_and_let_in_again_once_it_is_proven(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-2")
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    told = ["check", "drain compute-2", "recreate compute-2", "check", "undrain compute-2", "check"]
    assert world.told == told
    assert not any(node.drained for node in world.slurm.state.values())


def test_a_new_machine_that_the_service_has_let_in_meanwhile_is_checked_again(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-2")
    once = world.check

    def check(deployment: Deployment) -> Verdict:
        verdict = once(deployment)
        if "recreate compute-2" in world.told and world.slurm.state["compute-2"].drained:
            world.slurm.undrain("compute-2")  # for the report of its boot
        return verdict

    world.check = check  # type: ignore[method-assign]
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    assert world.told == ["check", "drain compute-2", "recreate compute-2", "check", "check"]


def test_a_permanent_node_is_not_recreated_without_a_word_and_the_error_names_the_command_that_does(
    tmp_path: Path,
) -> None:
    world = ClusterDouble(tmp_path, "compute-2")
    events: list[Event] = []
    with pytest.raises(VerifyError) as caught:
        repaired(world, tmp_path, Fix(), events)
    assert world.told == ["check", "drain compute-2"]
    assert "Next: gpucluster replace compute-2" in caught.value.hint
    assert any(each.name == "node compute-2" and each.status == "warning" for each in events)


def test_a_machine_that_is_bad_again_stays_drained_and_is_not_a_success(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-2")
    world.stays_bad = True
    with pytest.raises(VerifyError, match="compute-2"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert world.told == ["check", "drain compute-2", "recreate compute-2", "check"]
    assert world.slurm.state["compute-2"].reason == BAD


@pytest.mark.parametrize("whose", ["service", "option"])
def test_in_shadow_mode_it_is_reported_and_nothing_is_done(whose: str, tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1", shadow=whose == "service")
    events: list[Event] = []
    with pytest.raises(VerifyError, match="compute-e1: would be replaced"):
        repaired(world, tmp_path, Fix(shadow=whose == "option", replace_nodes=True), events)
    assert world.told == ["check"]
    assert any("compute-e1: would be replaced" in each.message for each in events)


def test_shadow_mode_does_nothing_with_nodes_that_are_drained_already_either(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-2", "compute-e1")
    for name in world.bad:
        world.drained_by(name, BAD)
    with pytest.raises(VerifyError, match="compute-2: would be replaced"):
        repaired(world, tmp_path, Fix(shadow=True, replace_nodes=True))
    assert (world.told, world.slurm.changes) == (["check"], [])


def test_what_the_breaker_stops_is_left_and_the_rest_is_done(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-1", "compute-e1", percent=20)
    with pytest.raises(VerifyError, match="compute-e1: the breaker is open") as caught:
        repaired(world, tmp_path, Fix(replace_nodes=True))
    told = ["check", "drain compute-1", "recreate compute-1", "check", "undrain compute-1", "check"]
    assert world.told == told
    assert caught.value.exit_code == 1


def test_a_check_that_all_nodes_fail_replaces_none(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-1", "compute-2", "compute-e1")
    with pytest.raises(VerifyError, match="the check itself is the suspect"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert world.told == ["check"]


def test_a_failure_that_is_only_reported_drains_no_node(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path)
    world.drained_by("compute-2", "broken fan")  # so that no job runs on both, which fails for the pool
    with pytest.raises(VerifyError, match="a job runs"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert (world.told, world.slurm.changes) == (["check"], [])


@pytest.mark.parametrize("reason", ["broken fan", f"{FOR_A_PERSON} home_share: not mounted", CHANGED])
def test_the_drain_of_an_operator_is_never_touched(reason: str, tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1")
    world.drained_by("compute-e1", reason)
    with pytest.raises(VerifyError, match=r"gpucluster replace compute-e1"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert world.told == ["check"]
    assert world.slurm.changes == []


def test_a_no_stops_before_anything_is_drained(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1", "compute-1")
    asked: list[list[str]] = []

    def no(nodes: Sequence[str]) -> None:
        asked.append(list(nodes))
        raise InputError("nothing was replaced")

    with pytest.raises(InputError, match="nothing was replaced"):
        repaired(world, tmp_path, Fix(confirm=no))
    assert asked == [["compute-e1"]], "the permanent one would not be replaced"
    assert world.told == ["check"]


@pytest.mark.parametrize("dies", ["drain compute-e1", "terminate compute-e1", "recreate", "undrain"])
def test_a_run_that_is_killed_anywhere_is_continued_by_the_next_one(dies: str, tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1", "compute-2", dies=dies)
    with pytest.raises(KeyboardInterrupt):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    assert world.slurm.state.keys() == {"compute-1", "compute-2"}
    assert not any(node.drained for node in world.slurm.state.values())
    assert world.told.count("terminate compute-e1") <= 2


def test_jobs_that_do_not_end_leave_the_node_drained_for_the_next_run(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-e1")

    world.busy = True
    with pytest.raises(ToolError, match="job 7"):
        repaired(world, tmp_path, Fix())
    assert world.slurm.state["compute-e1"].reason == BAD
    world.busy = False
    assert repaired(world, tmp_path, Fix()).passed


@pytest.mark.parametrize(("node", "earlier"), [("compute-2", False), ("compute-e1", False), ("compute-e1", True)])
def test_a_node_with_bad_hardware_is_reported_as_it_is_replaced(node: str, earlier: bool, tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, node)
    world.check_name = "gpu_ecc"
    if earlier:  # a run before this one has found it, and the node passes its checks meanwhile
        world.drained_by(node, f"{FAILED_CHECKS} gpu_ecc: 3 errors")
        world.bad = set()
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    assert world.reported == {node: "gpu_ecc: 3 errors" if earlier else "gpu_ecc: seen"}


def test_what_is_no_fault_of_the_hardware_is_not_reported(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path, "compute-2", "compute-e1")
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    assert {"recreate compute-2", "terminate compute-e1"} <= set(world.told)
    assert world.reported == {}


def test_nodes_that_are_replaced_by_name_have_a_fault_only_if_checks_drained_them(tmp_path: Path) -> None:
    world = ClusterDouble(tmp_path)
    world.drained_by("compute-2", f"{FOR_A_PERSON} drives: 7 of 8")
    world.drained_by("compute-e1", "broken fan")
    faults = repair_of(world).faults(["compute-1", "compute-2", "compute-e1"])
    assert {name: fault.reason for name, fault in faults.items()} == {"compute-2": "drives: 7 of 8"}
    assert repair_of(world).faults(["compute-1"]) == {}, "compute-2 is not replaced"
    # What a check has shown comes before what the operator has seen.
    faults = repair_of(world).faults(["compute-1", "compute-2"], "no answer")
    assert {name: fault.reason for name, fault in faults.items()} == {
        "compute-1": "an operator reports: no answer", "compute-2": "drives: 7 of 8",
    }  # fmt: skip


def test_a_scheduler_that_is_silent_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ClusterDouble(tmp_path)
    events: list[Event] = []

    def silent() -> dict[str, str]:
        raise ToolError("Slurm gives no answer")

    monkeypatch.setattr(world, "faulty", silent)
    assert repair_of(world, events).faults(["compute-1"]) == {}
    assert repair_of(world).faults(["compute-1"], "no answer").keys() == {"compute-1"}
    assert "Slurm gives no answer" in events[-1].message


def test_what_the_states_of_slurm_mean() -> None:
    assert standing(SlurmNode("mixed", BAD)) is Standing.SERVING
    assert standing(SlurmNode("draining", BAD)) is Standing.FAILED
    assert standing(SlurmNode("down", f"{BAD} : Not responding")) is Standing.FAILED
    assert standing(SlurmNode("drained", f"{REBOOT_FIRST} x : reboot issued")) is Standing.FAILED
    assert standing(SlurmNode("drained", f"{FOR_A_PERSON} x")) is Standing.PERSON
    assert standing(SlurmNode("drained", f"{RETURNED} x")) is Standing.PERSON
    assert standing(SlurmNode("drained", CHANGED)) is Standing.OTHER


def test_names_of_no_pool_belong_to_no_node() -> None:
    names = ["compute-1", "compute-e3", "compute-9", "demo-controller"]
    assert pools_of(SPEC, names) == {"compute-1": "compute", "compute-e3": "compute"}
