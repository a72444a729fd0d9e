"""The checks of a boot before a host becomes a node: what fails them, and what a node of Kubernetes reports later.

What makes the checks, and the API server, are doubles.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.model import HostReport, Profile, Status
from gpucluster.node_agent.health import __main__ as program
from gpucluster.node_agent.health import client
from gpucluster.node_agent.rules import reasons
from tests.controller.health.doubles import report


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host whose checks find `finds`; `published` are the profiles that its object in the API has got."""
    host: dict[str, Any] = {"finds": Status.PASS, "published": [], "measured": []}

    def measure(profile: Profile, _seconds: float, _checks: Any) -> HostReport:
        host["measured"].append(profile)
        return report("gpu-e1", {min(registry.drains()): host["finds"]}, profile)

    monkeypatch.setattr(client, "measure", measure)
    monkeypatch.setattr(program, "publish", lambda _kubectl, one, *_: host["published"].append(one.profile))
    host["marker"] = tmp_path / "run" / "boot-checked"
    return host


def gate(host: dict[str, Any], *more: str) -> int:
    return program.main(["gate", "--marker", str(host["marker"]), *more])


def publish(host: dict[str, Any]) -> int:
    return program.main(["publish", "--marker", str(host["marker"]), "--kubeconfig", "/none"])


def test_an_elastic_node_of_kubernetes_that_fails_does_not_join_and_reports_why_in_the_autoscalers_words(
    node: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    node["finds"] = Status.FAIL
    assert gate(node, "--hold") == 1
    said = capsys.readouterr().err
    assert said.startswith(reasons.FAILED_CHECKS)
    assert min(registry.drains()) in said
    # It is asked again as often as the configuration is tried.
    assert gate(node, "--hold") == 1
    node["finds"] = Status.PASS
    assert gate(node, "--hold") == 0
    assert gate(node, "--hold") == 0
    assert node["measured"] == [Profile.BOOT] * 3


@pytest.mark.parametrize(
    ("finds", "hold"), [(Status.UNKNOWN, ["--hold"]), (Status.WARN, ["--hold"]), (Status.FAIL, [])]
)
def test_only_a_failure_holds_and_nothing_does_in_shadow_mode(
    node: dict[str, Any], finds: Status, hold: list[str]
) -> None:
    node["finds"] = finds
    assert gate(node, *hold) == 0


def test_the_report_of_the_boot_comes_into_the_nodes_object_and_is_not_made_twice(node: dict[str, Any]) -> None:
    gate(node, "--hold")
    assert publish(node) == 0
    assert node["published"] == [Profile.BOOT, Profile.PERIODIC]
    assert publish(node) == 0
    assert node["published"] == [Profile.BOOT, Profile.PERIODIC, Profile.PERIODIC]
    assert node["measured"] == [Profile.BOOT, Profile.PERIODIC, Profile.PERIODIC]


def test_a_permanent_node_makes_them_when_it_reports_first(node: dict[str, Any]) -> None:
    assert (publish(node), publish(node)) == (0, 0)
    assert node["published"] == node["measured"] == [Profile.BOOT, Profile.PERIODIC]


def test_a_damaged_report_of_the_boot_costs_only_itself(node: dict[str, Any]) -> None:
    gate(node, "--hold")
    (left,) = [each for each in node["marker"].parent.iterdir() if each != node["marker"]]
    left.write_text("{")
    assert publish(node) == 0
    assert node["published"] == [Profile.PERIODIC]


def test_what_a_prolog_runs_loads_no_http_client() -> None:
    """It is two fifths of the time until the checks of each job begin."""
    code = "import sys; import gpucluster.node_agent.health.__main__; print('http.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("finds", "drained", "held"),
    [
        (Status.FAIL, True, 1),
        (Status.FAIL, False, 0),
        # Its reboot has fixed it: the controller undrains it when its slurmd has registered.
        (Status.PASS, True, 0),
        (Status.UNKNOWN, True, 0),
    ],
)
def test_an_elastic_node_of_slurm_is_held_for_what_fails_in_this_boot_alone(
    node: dict[str, Any], monkeypatch: pytest.MonkeyPatch, finds: Status, drained: bool, held: int
) -> None:
    node["finds"] = finds
    monkeypatch.setattr(client, "send", lambda *_: client.HealthAnswer(drained, "gpucluster: a reason"))
    assert gate(node, "--hold", "--controller", "10.0.0.2") == held
    assert node["marker"].exists() is not bool(held)
