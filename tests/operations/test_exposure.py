"""What hosts run, and what is known against it: the question to the controller, and what its answers mean."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpucluster.advisories import table
from gpucluster.advisories.evaluate import Standing
from gpucluster.errors import ToolError
from gpucluster.operations.exposure import Exposure, Exposures
from gpucluster.process import Completed
from gpucluster.spec import loads
from gpucluster.workspace.saved_state import SavedHost
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.spec.spec_texts import LOCAL

TODAY = date(2026, 11, 28)
HEAD, NODE = "demo-controller", "compute-1"
OLD = [{"product": "slurm", "version": "25.11.7", "package": ""}]
OF_DEBIAN = [
    {"product": "slurm", "version": "22.05.8-4+deb12u3", "package": "slurmd"},
    {"product": "runc", "version": "1.5.1-1", "package": "runc"},
]


def answer(installed: Sequence[Mapping[str, str]], system: str = "debian-12") -> str:
    return json.dumps({"system": system, "installed": installed})


class Double(ControllerDouble):
    """With hosts, and Slurm's states of nodes. It proves nothing of who is asked by ssh: the last test does."""

    def __init__(self, lines: str, *hosts: str, states: Mapping[str, str] | None = None) -> None:
        super().__init__(said(lines))
        self._hosts, self._states = hosts, states or {}

    def hosts(self) -> tuple[SavedHost, ...]:
        return tuple(SavedHost(name, "10.77.0.2", f"ocid1.instance.test..{name}") for name in self._hosts)

    def slurm_nodes(self) -> list[dict[str, str]]:
        return [{"node": name, "state": state, "partition": "cpu"} for name, state in self._states.items()]


def ask(double: Double, *nodes: str) -> Exposure:
    rows = [{"node": node} for node in nodes]
    return Exposures(loads(LOCAL), double, lambda: rows).ask(TODAY)  # type: ignore[arg-type]


def test_each_host_has_what_it_runs_and_what_is_known_against_it() -> None:
    found = ask(Double(f"{NODE} 0 {answer(OF_DEBIAN)}\n{HEAD} 0 {answer(OLD)}\n", HEAD, NODE))
    head, node = found.hosts
    assert (head.host, head.error, head.system) == (HEAD, "", "debian-12")
    assert [fault.title for fault in head.known] == ["CVE-2026-65107 and 7 others"]
    # The distribution is asked, which is not a finding of ours.
    assert (node.host, node.known) == (NODE, ())
    assert {(fault.product, fault.standing) for fault in node.faults} == {("slurm", Standing.ASK)}
    assert not found.clean
    data = found.to_dict()
    assert data["searched"] == table.searched().isoformat()
    assert json.loads(json.dumps(data))["hosts"][0]["faults"][0]["fixed"] == "25.11.8"


def test_a_cluster_with_questions_only_is_clean() -> None:
    assert ask(Double(f"{HEAD} 0 {answer(OF_DEBIAN)}\n", HEAD)).clean


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "it has not answered"),
        (
            f"{NODE} 255 ssh: connect to host compute-1 port 22: No route",
            "the controller does not reach it: ssh: connect",
        ),
        (f"{NODE} 124 ", "no answer within 20 s"),
        (f"{NODE} 2 for more, run: gpucluster-agent COMMAND --help", "Run: gpucluster apply"),
        (f"{NODE} 127 sh: 1: not found", "Run: gpucluster apply"),
        (f"{NODE} 1 ", "gpucluster-agent ended with 1"),
        (f"{NODE} 0 no json", "its answer can't be read: no json"),
        (f"{NODE} 0 []", "its answer can't be read"),
        (f'{NODE} 0 {{"system": "x", "installed": [{{"product": "slurm"}}]}}', "its answer can't be read"),
        ("what is that", "it has not answered"),
    ],
)
def test_a_host_that_does_not_say_it_is_unknown_and_hides_no_other(line: str, why: str) -> None:
    found = ask(Double(f"{HEAD} 0 {answer(OF_DEBIAN)}\n{line}\n", HEAD, NODE))
    head, node = found.hosts
    assert (head.error, node.host) == ("", NODE)
    assert why in node.error
    assert not found.clean


def test_elastic_nodes_that_are_up_are_asked_too() -> None:
    states = {"cpu-e1": "idle", "cpu-e2": "idle~", "cpu-e3": "allocated#", "compute-1": "idle", "other-1": "idle"}
    double = Double("", HEAD, NODE, states=states)
    assert [host.host for host in ask(double).hosts] == [HEAD, NODE, "cpu-e1"]
    assert double.asked[0].text.split() == [HEAD, NODE, "cpu-e1"]


def test_permanent_hosts_are_asked_although_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_double: Double) -> list[dict[str, str]]:
        raise ToolError("Slurm gives no answer: slurmctld is not reached")

    monkeypatch.setattr(Double, "slurm_nodes", silent)
    found = ask(Double(f"{HEAD} 0 {answer(OF_DEBIAN)}\n", HEAD))
    assert [(host.host, host.error) for host in found.hosts] == [
        (HEAD, ""),
        ("elastic nodes", "Slurm gives no answer: slurmctld is not reached"),
    ]
    assert not found.clean


def test_without_a_cluster_nobody_is_asked() -> None:
    double = Double("")
    with pytest.raises(ToolError, match="there is no cluster yet"):
        ask(double)
    assert double.asked == []


def test_more_hosts_have_more_time() -> None:
    few, many = Double("", HEAD), Double("", HEAD, *(f"compute-{number}" for number in range(1, 500)))
    ask(few)
    ask(many)
    assert few.asked[0].timeout < many.asked[0].timeout < 400


def test_the_question_asks_the_controller_here_and_the_others_by_ssh(tmp_path: Path) -> None:
    """As a shell reads it. ssh and the agent are doubles."""
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\necho '{answer(OLD)}'\n")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nfor last; do :; done\nwhile [ "$1" != "--" ]; do shift; done\n'
        'case "$2" in compute-1) echo "Warning: a banner" >&2; shift 2; exec "$@" ;; esac\n'
        'echo "no route" >&2\nexit 255\n'
    )
    for file in (agent, ssh):
        file.chmod(0o755)

    def run(asked: Asked) -> Completed:
        command = asked.command.replace("/usr/local/bin/gpucluster-agent", str(agent))
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", command], input=asked.text, capture_output=True, text=True, check=True, env={"PATH": path}
        )
        return said(done.stdout)

    double = Double("", HEAD, NODE, "compute-2")
    double._answer = run
    found: Any = ask(double)
    assert [(host.host, bool(host.known), host.error) for host in found.hosts] == [
        (HEAD, True, ""),
        (NODE, True, ""),
        ("compute-2", False, "the controller does not reach it: no route"),
    ]
