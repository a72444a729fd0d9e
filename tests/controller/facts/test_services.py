"""The autoscaler and the control plane of Kubernetes are asked, again where they have just started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.facts import services
from gpucluster.node_agent.programs import ProgramGroup
from tests.doubles.commands import Commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(services, "_AGAIN_SECONDS", 0)
    return Commands(tmp_path, monkeypatch)


def _answers(commands: Commands, *answers: str) -> None:
    """Each call prints the next of them, and all further ones the last."""
    for number, answer in enumerate(answers, 1):
        (commands.folder / f"answer-{number}").write_text(answer)
    count = f"$(wc -l <{commands.folder}/gpucluster-autoscaler.calls)"
    last = len(answers)
    script = f'n={count}; [ "$n" -lt {last} ] || n={last}; cat "{commands.folder}/answer-$n"'
    commands.add("gpucluster-autoscaler", script)


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        (['{"healthy": true}'], 1),
        (['{"healthy": false}', '{"healthy": true}'], 2),
        (['{"healthy": false}'], 8),
        ([*['{"healthy": false, "why": "it has run no reconcile pass yet"}'] * 10, '{"healthy": true}'], 11),
        ([""], 8),
    ],
)
def test_an_autoscaler_gets_its_time(commands: Commands, answers: Sequence[str], calls: int) -> None:
    _answers(commands, *answers)
    expected: Any = json.loads(answers[-1]) if answers[-1] else {"error": "no response within the time limit"}
    assert services.autoscaler(ProgramGroup()) == expected
    assert len(commands.calls("gpucluster-autoscaler")) == calls


def test_an_autoscaler_that_fails_says_why(commands: Commands) -> None:
    commands.prints("gpucluster-autoscaler", "", 1, "no policy\n")
    assert services.autoscaler(ProgramGroup()) == {"error": "no policy"}


def test_kubernetes_and_pods_are_asked(commands: Commands) -> None:
    commands.add(
        "agent", 'if [ $2 = pods ]; then echo "{\\"kubernetes_pods\\": $(cat)}"; else echo \'{"nodes": []}\'; fi'
    )
    program = str(commands.folder / "agent")
    assert services.kubernetes({"control_plane": "self"}, ProgramGroup(), program) == {"nodes": []}
    assert commands.calls("agent") == ["kubernetes --control-plane=self facts"]
    asked = [{"pool": "a", "nodes": {"a-1": "a-1"}}]
    assert services.pods(asked, ProgramGroup(), program) == {"kubernetes_pods": asked}


def test_a_control_plane_without_an_answer_leaves_the_facts_out(commands: Commands) -> None:
    commands.prints("agent", "[]", 1, "no API server")
    program = str(commands.folder / "agent")
    assert services.kubernetes({"control_plane": "oke"}, ProgramGroup(), program) == {}
    assert services.pods([{}], ProgramGroup(), program) == {"kubernetes_pods_error": "no API server"}
    commands.prints("agent", "")
    assert services.pods([{}], ProgramGroup(), program) == {"kubernetes_pods_error": "no answer in time"}
