"""The order in which an upgrade of Kubernetes is done, and what stops it. The control plane and Ansible are doubles;
tests/e2e/test_kubernetes_upgrade.py has the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock, patch

import pytest

from gpucluster.errors import AnsibleError, InputError, ToolError
from gpucluster.events import Event
from gpucluster.kubernetes.upgrades import KubernetesRelease, UpgradeStep
from gpucluster.lifecycle.kubernetes_upgrade import Upgrading
from gpucluster.node_agent.rules.reasons import CHANGED, FAILED_CHECKS, UPGRADED
from gpucluster.operations.kubernetes import (
    ControlPlaneClient,
    ControlPlaneProblem,
    ControlPlaneState,
    EtcdSpace,
    KubernetesNode,
)
from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade, plan
from gpucluster.spec import loads
from gpucluster.workspace.run import Run
from tests.spec.spec_texts import MINIMAL

OLD, NEW = KubernetesRelease(33, 1), KubernetesRelease(34, 2)
CONTROLLER = "demo-controller"
GOOD = ControlPlaneState(ready=True, problems=(), etcd=None, certificates=())
WHOLE = (
    "prepare", "backup", "control_plane demo-controller",
    "drain demo-controller", "node demo-controller", "uncordon demo-controller",
    "drain compute-1", "node compute-1", "uncordon compute-1",
)  # fmt: skip


class _PlaneDouble(ControlPlaneClient):
    """Remembers who is cordoned, and notes what it is told."""

    def __init__(self, done: list[str], nodes: Mapping[str, KubernetesNode], state: ControlPlaneState) -> None:
        super().__init__(Mock(), Mock())
        self.done, self.known, self._state = done, dict(nodes), state

    def state(self) -> ControlPlaneState:
        return self._state

    def nodes(self) -> dict[str, KubernetesNode]:
        return dict(self.known)

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        for name, reason in reasons.items():
            self.done.append(f"drain {name}")
            if not self.known[name].cordoned or self.known[name].reason:
                self.known[name] = replace(self.known[name], cordoned=True, reason=reason)

    def uncordon(self, name: str) -> None:
        self.done.append(f"uncordon {name}")
        self.known[name] = replace(self.known[name], cordoned=False, reason="")


class _Case:
    """A cluster of a controller and a node, and an upgrade of it."""

    def __init__(self, node: KubernetesNode | None = None, state: ControlPlaneState = GOOD, fails: str = "") -> None:
        self.done: list[str] = []
        self.events: list[Event] = []
        self._fails = fails
        nodes = {name: KubernetesNode(name, "True", cordoned=False) for name in (CONTROLLER, "compute-1")}
        self.plane = _PlaneDouble(self.done, {**nodes, "compute-1": node or nodes["compute-1"]}, state)

    def _configure(self, step: str, names: tuple[str, ...]) -> None:
        said = " ".join((step, *names))
        if said == self._fails:
            raise AnsibleError("upgrade_kubernetes.yml failed", hint="gpucluster apply")
        self.done.append(said)

    def _back_up(self) -> Path | None:
        self.done.append("backup")
        return Path("backup.tar.gz")

    def upgrade(self, *steps: UpgradeStep) -> Path | None:
        plan = KubernetesUpgrade(str(OLD), {}, str(NEW), steps)
        run = cast(Run, SimpleNamespace(phase=lambda _name: nullcontext()))
        return Upgrading(self.plane, self._configure, self._back_up, self.events.append).upgrade(
            plan, CONTROLLER, run, 60
        )


def _steps(*hosts: str) -> list[UpgradeStep]:
    return [UpgradeStep(host, OLD, NEW) for host in hosts]


def test_the_control_plane_is_upgraded_after_a_backup_and_then_node_by_node() -> None:
    case = _Case()
    assert case.upgrade(*_steps("", CONTROLLER, "compute-1")) == Path("backup.tar.gz")
    assert tuple(case.done) == WHOLE


@pytest.mark.parametrize("reason", [UPGRADED, CHANGED])
def test_what_is_left_of_an_interrupted_upgrade_needs_no_backup(reason: str) -> None:
    case = _Case(KubernetesNode("compute-1", "False", cordoned=True, reason=reason))
    assert case.upgrade(*_steps("compute-1")) is None
    assert case.done == ["prepare", "drain compute-1", "node compute-1", "uncordon compute-1"]


@pytest.mark.parametrize("reason", [UPGRADED, CHANGED])
def test_a_node_that_was_upgraded_and_left_cordoned_comes_back(reason: str) -> None:
    case = _Case(KubernetesNode("compute-1", "True", cordoned=True, reason=reason))
    case.upgrade()
    assert case.done == ["uncordon compute-1"]


@pytest.mark.parametrize("reason", ["", CHANGED])
def test_an_apply_does_not_resume_a_node_whose_upgrade_has_not_ended(reason: str) -> None:
    case = _Case(KubernetesNode("compute-1", "True", cordoned=bool(reason), reason=reason), fails="node compute-1")
    with pytest.raises(AnsibleError):
        case.upgrade(*_steps("compute-1"))
    left = case.plane.known["compute-1"]
    assert (left.cordoned, left.reason, left.drained_by_us) == (True, UPGRADED, False)


@pytest.mark.parametrize("reason", ["", f"{FAILED_CHECKS} gpu_count: 7 of 8"])
def test_a_node_that_others_have_cordoned_stays_so(reason: str) -> None:
    case = _Case(KubernetesNode("compute-1", "True", cordoned=True, reason=reason))
    case.upgrade(*_steps("compute-1"))
    assert case.done == ["prepare", "drain compute-1", "node compute-1"]
    assert (case.plane.known["compute-1"].cordoned, case.plane.known["compute-1"].reason) == (True, reason)


def test_a_failure_stops_the_upgrade_and_names_the_command_that_continues_it() -> None:
    for number, step in enumerate(WHOLE):
        if step.split()[0] not in ("prepare", "control_plane", "node"):
            continue
        case = _Case(fails=step)
        with pytest.raises(AnsibleError) as caught:
            case.upgrade(*_steps("", CONTROLLER, "compute-1"))
        assert tuple(case.done) == WHOLE[:number]
        assert caught.value.hint.startswith("Fix the cause, then run: gpucluster kubernetes upgrade --to 1.34.2")
        assert caught.value.what.startswith("the upgrade stopped at ")


def test_nothing_is_begun_while_a_node_or_the_control_plane_is_not_well() -> None:
    case = _Case(KubernetesNode("compute-1", "Unknown", cordoned=False))
    with pytest.raises(ToolError, match="not ready: compute-1") as caught:
        case.upgrade(*_steps("", CONTROLLER, "compute-1"))
    assert "gpucluster replace compute-1" in caught.value.hint
    full = ControlPlaneProblem("etcd is full", "Run: gpucluster kubernetes compact")
    for state in (
        ControlPlaneState(ready=True, problems=(full,), etcd=EtcdSpace(9, 9, full=True), certificates=()),
        ControlPlaneState(ready=False, problems=(full,), etcd=None, certificates=()),
    ):
        broken = _Case(state=state)
        with pytest.raises(ToolError, match="etcd is full") as caught:
            broken.upgrade(*_steps(""))
        assert caught.value.hint == full.hint
        assert case.done == broken.done == []


def test_another_problem_is_only_a_warning() -> None:
    problem = ControlPlaneProblem("the authority ends in 60 days", "Replace it")
    case = _Case(state=ControlPlaneState(ready=True, problems=(problem,), etcd=None, certificates=()))
    case.upgrade(*_steps(""))
    assert "the authority ends in 60 days" in str(case.events)
    assert case.done == ["prepare", "backup", "control_plane demo-controller"]


def test_a_node_that_needs_another_release_first_is_a_command_of_its_own() -> None:
    case = _Case()
    with pytest.raises(InputError) as caught:
        case.upgrade(UpgradeStep("compute-1", KubernetesRelease(30, 1), OLD), *_steps(""))
    assert caught.value.hint == "Run: gpucluster kubernetes upgrade --to 1.33.1; then this command again"
    assert case.done == []


def test_elastic_nodes_are_left_out() -> None:
    names = (CONTROLLER, "compute-1", "compute-e2", "compute-e99")
    nodes = {name: KubernetesNode(name, "True", cordoned=False, version="v1.33.1") for name in names}
    plane = _PlaneDouble([], nodes, GOOD)
    with patch.object(plane, "version", return_value="v1.33.1"):
        text = f"{MINIMAL.replace('count: 1', 'count: 1, max_count: 3')}scheduler: kubernetes\n"
        made = plan(loads(text), plane, "1.34.2")
    # The last one has no name of the pool: an operator has joined it.
    assert {step.host for step in made.steps} == {"", CONTROLLER, "compute-1", "compute-e99"}
    assert "compute-e2" in made.nodes
