"""`verify --fix` as a whole: what it asks for, in which order, and what it never does. Slurm, the health service, the
autoscaler and Terraform are one double; how each of them works is tested where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gpucluster.agent.checks.model import Finding, Status
from gpucluster.agent.rules.reasons import CHANGED, FAILED_CHECKS, FOR_A_PERSON
from gpucluster.errors import InputError, ToolError, VerifyError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.repair import Fix, Repair, findings_of, pools_of, standing
from gpucluster.lifecycle.replace import ElasticReplacement
from gpucluster.operations.drain import Draining, SlurmNode
from gpucluster.operations.health import HealthService
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.repair import Action, Decision, Standing
from gpucluster.verdict.verdict import Verdict, of_findings
from gpucluster.workspace.run import Run
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL.replace("    count: 2\n", "    count: 2\n    max_count: 4\n", 1), "cluster.yml")
HOSTS = ("demo-controller", "compute-1", "compute-2")
BAD = f"{FAILED_CHECKS} home_share: not mounted"
IDLE = SlurmNode("idle", "none")


class ClusterDouble:
    """Stands for everything outside of this machine: nodes that are bad until they get another machine.

    Args:
        breaker: the health service drains none.
        shadow: it is in shadow mode.
        dies: name of the step at which the run is killed.
    """

    def __init__(self, *bad: str, breaker: bool = False, shadow: bool = False, dies: str = "") -> None:
        self.nodes = {"compute-1": IDLE, "compute-2": IDLE, "compute-e1": IDLE}
        self.bad = set(bad)
        self.breaker, self.shadow, self.dies = breaker, shadow, dies
        self.stays_bad = self.busy = False
        self.told: list[str] = []

    def step(self, words: str) -> None:
        self.told.append(words)
        if self.dies and words.startswith(self.dies):
            self.dies = ""
            raise KeyboardInterrupt

    # --- as the health service -----

    def react(self, findings: Collection[Finding], *, shadow: bool = False) -> tuple[Decision, ...]:
        failed = sorted(
            {each.subject for each in findings if each.status is Status.FAIL and each.subject in self.nodes}
        )
        passed = {each.subject for each in findings if each.status is Status.PASS} - set(failed)
        decisions = []
        for name in failed:
            if self.nodes[name] != IDLE:
                decisions.append(Decision(name, Action.NONE, False, "it is drained already"))
            elif self.breaker:
                decisions.append(Decision(name, Action.NONE, False, "the breaker is open"))
            elif shadow or self.shadow:
                decisions.append(Decision(name, Action.SHADOW, False, "would be drained"))
            else:
                self.nodes[name] = SlurmNode("drained", BAD)
                self.step(f"drain {name}")
                decisions.append(Decision(name, Action.DRAIN, True, BAD))
        for name in sorted(passed & set(self.nodes)):
            if self.nodes[name].reason == BAD and (shadow or self.shadow):
                decisions.append(Decision(name, Action.SHADOW, False, "would be undrained"))
            elif self.nodes[name].reason == BAD:
                self.nodes[name] = IDLE
                self.step(f"undrain {name}")
                decisions.append(Decision(name, Action.UNDRAIN, True, "passed since"))
        return tuple(decisions)

    # --- as the autoscaler and Terraform -----

    def replace(self, nodes: Sequence[str], _timeout: float) -> None:
        if self.busy:
            raise ToolError("job 7 of alice on compute-e1")
        for name in nodes:
            self.step(f"terminate {name}")
            self.nodes.pop(name)
            self.bad.discard(name)

    def recreate(self, run: Run, nodes: Sequence[str], drain_timeout: float) -> Deployment:
        for name in nodes:
            self.step(f"recreate {name}")
            if not self.stays_bad:
                self.bad.discard(name)
        return cast(Deployment, None)

    # --- as the hosts -----

    def check(self, deployment: Deployment) -> Verdict:
        self.step("check")
        findings = [
            Finding("home_share", host, Status.FAIL if host in self.bad else Status.PASS, "seen") for host in HOSTS
        ]
        if "compute-e1" in self.bad:
            findings.append(Finding("home_share", "compute-e1", Status.FAIL, "seen"))
        serving = all(self.nodes[name] == IDLE for name in ("compute-1", "compute-2"))
        findings.append(Finding("job", "compute", Status.PASS if serving else Status.FAIL, "seen"))
        return of_findings(findings, HOSTS, Level.QUICK)


def repaired(world: ClusterDouble, tmp_path: Path, fix: Fix, events: list[Event] | None = None) -> Verdict:
    class Slurm:
        def nodes(self) -> Mapping[str, SlurmNode]:
            return world.nodes

    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    repair = Repair(
        SPEC,
        cast(HealthService, world),
        cast(Draining, Slurm()),
        cast(ElasticReplacement, world),
        world.recreate,
        events.append if events is not None else ignore,
    )
    deployment: Any = None
    verdict = world.check(deployment)
    return repair.run(Run("verify", paths, ignore), deployment, verdict, world.check, fix)


def test_nothing_is_done_to_a_good_cluster(tmp_path: Path) -> None:
    world = ClusterDouble()
    assert repaired(world, tmp_path, Fix()).passed
    assert world.told == ["check"]


def test_an_elastic_node_is_drained_terminated_and_the_rest_is_proven_again(tmp_path: Path) -> None:
    world = ClusterDouble("compute-e1")
    verdict = repaired(world, tmp_path, Fix())
    assert verdict.passed
    assert world.told == ["check", "drain compute-e1", "terminate compute-e1", "check"]
    assert "compute-e1" not in {finding.subject for finding in findings_of(verdict)}


def test_a_permanent_node_is_recreated_and_let_in_again_once_it_is_proven(tmp_path: Path) -> None:
    world = ClusterDouble("compute-2")
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    told = ["check", "drain compute-2", "recreate compute-2", "check", "undrain compute-2", "check"]
    assert world.told == told
    assert set(world.nodes.values()) == {IDLE}


def test_a_permanent_node_is_not_recreated_without_a_word_and_the_error_says_which_command_does(tmp_path: Path) -> None:
    world = ClusterDouble("compute-2")
    events: list[Event] = []
    with pytest.raises(VerifyError) as caught:
        repaired(world, tmp_path, Fix(), events)
    assert world.told == ["check", "drain compute-2"]
    assert "Next: gpucluster replace compute-2" in caught.value.hint
    assert any(each.name == "node compute-2" and each.status == "warning" for each in events)


def test_a_machine_that_is_bad_again_stays_drained_and_is_no_success(tmp_path: Path) -> None:
    world = ClusterDouble("compute-2")
    world.stays_bad = True
    with pytest.raises(VerifyError, match="compute-2"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert world.told == ["check", "drain compute-2", "recreate compute-2", "check"]
    assert world.nodes["compute-2"].reason == BAD


@pytest.mark.parametrize("mode", ["breaker", "shadow", "option"])
def test_what_the_service_does_not_drain_is_not_replaced(mode: str, tmp_path: Path) -> None:
    world = ClusterDouble("compute-e1", breaker=mode == "breaker", shadow=mode == "shadow")
    events: list[Event] = []
    with pytest.raises(VerifyError) as caught:
        repaired(world, tmp_path, Fix(shadow=mode == "option", replace_nodes=True), events)
    assert world.told == ["check"]
    words = "the breaker is open" if mode == "breaker" else "compute-e1: would be replaced"
    assert words in str(caught.value)
    assert any(words in each.message for each in events)


@pytest.mark.parametrize("reason", ["broken fan", f"{FOR_A_PERSON} home_share: not mounted", CHANGED])
def test_the_drain_of_a_person_is_never_touched(reason: str, tmp_path: Path) -> None:
    world = ClusterDouble("compute-e1")
    world.nodes["compute-e1"] = SlurmNode("drained", reason)
    with pytest.raises(VerifyError, match=r"gpucluster replace compute-e1"):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert world.told == ["check"]
    assert world.nodes["compute-e1"] == SlurmNode("drained", reason)


def test_a_no_stops_before_anything_is_drained(tmp_path: Path) -> None:
    world = ClusterDouble("compute-e1", "compute-1")
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
    world = ClusterDouble("compute-e1", "compute-2", dies=dies)
    with pytest.raises(KeyboardInterrupt):
        repaired(world, tmp_path, Fix(replace_nodes=True))
    assert repaired(world, tmp_path, Fix(replace_nodes=True)).passed
    assert world.nodes == {"compute-1": IDLE, "compute-2": IDLE}
    assert world.told.count("terminate compute-e1") <= 2


def test_jobs_that_do_not_end_leave_the_node_drained_for_the_next_run(tmp_path: Path) -> None:
    world = ClusterDouble("compute-e1")

    world.busy = True
    with pytest.raises(ToolError, match="job 7"):
        repaired(world, tmp_path, Fix())
    assert world.nodes["compute-e1"].reason == BAD
    world.busy = False
    assert repaired(world, tmp_path, Fix()).passed


def test_what_the_states_of_slurm_mean() -> None:
    assert standing(SlurmNode("mixed", BAD)) is Standing.SERVING
    assert standing(SlurmNode("draining", BAD)) is Standing.FAILED
    assert standing(SlurmNode("down", f"{BAD} : Not responding")) is Standing.FAILED
    assert standing(SlurmNode("drained", f"{FOR_A_PERSON} x")) is Standing.PERSON
    assert standing(SlurmNode("drained", CHANGED)) is Standing.OTHER


def test_names_of_no_pool_belong_to_nobody() -> None:
    names = ["compute-1", "compute-e3", "compute-9", "demo-controller"]
    assert pools_of(SPEC, names) == {"compute-1": "compute", "compute-e3": "compute"}
