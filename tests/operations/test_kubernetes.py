"""Operations on the control plane: the operator's side, with the controller's own program behind a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.node_agent.rules.reasons import CHANGED
from gpucluster.operations import kubernetes
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.operations.rpc import RemoteConversation
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.controller.kubernetes.objects import budget, node, pod


def control_plane(kubeconfig: Path, kubectl: str, events: list[Event]) -> ControlPlaneClient:
    """That of a kubeconfig; the program of the controller runs here instead of there."""
    program = "import sys; from gpucluster.controller.kubernetes.__main__ import main; sys.exit(main(sys.argv[1:]))"

    @contextmanager
    def session() -> Iterator[RemoteConversation]:
        folder = str(Path(kubectl).parent)
        argv = ["env", f"PATH={folder}", sys.executable, "-c", program]
        with process.ProcessConversation([*argv, f"--kubeconfig={kubeconfig}", "serve"], end_s=20) as talk:
            yield RemoteConversation(talk)

    return ControlPlaneClient(Mock(), events.append, session)


def test_without_a_control_plane_the_error_names_what_makes_one(tmp_path: Path) -> None:
    events: list[Event] = []
    plane = control_plane(tmp_path / "none", str(tmp_path / "kubectl"), events)
    with pytest.raises(ToolError, match="kubectl is not installed") as raised:
        plane.nodes()
    assert raised.value.hint == "Run: gpucluster apply"
    with pytest.raises(InputError, match="not the name of a node"):
        plane.drain({"--all": CHANGED}, 5)
    plane.drain({"n1": CHANGED}, 0)  # only a warning: the machine is removed in any case
    assert "without draining them" in str(events)


def test_nodes_are_awaited_beyond_a_question_that_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["no answer", "False", "True", "never asked"]

    def nodes() -> dict[str, Any]:
        if (ready := answers.pop(0)) == "no answer":
            raise ToolError("etcd on the controller gives no answer in time")
        return {"n1": Mock(ready=ready)}

    plane = ControlPlaneClient(Mock(), ignore)
    monkeypatch.setattr(plane, "nodes", nodes)
    monkeypatch.setattr(kubernetes, "_POLL_S", 0.01)
    plane.await_answers(["n1"])
    assert answers == ["never asked"]


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_nodes_are_drained_resumed_and_removed(tmp_path: Path) -> None:
    events: list[Event] = []
    with running(tmp_path) as server:
        plane = control_plane(server.kubeconfig, server.kubectl._argv[0], events)
        _walk(server, plane, events)


def _walk(server: ApiServer, plane: ControlPlaneClient, events: list[Event]) -> None:
    server.create(node("n1"), node("n2"), budget("web", 1, 1, 1, app="web"), pod("web-1", "n1", app="web"))
    assert {name: each.ready for name, each in plane.nodes().items()} == {"n1": "True", "n2": "True"}
    with pytest.raises(ToolError, match="the disruption budget default/web wants 1 healthy pods of 1"):
        plane.drain({"n1": CHANGED}, 0.1)
    assert "default/web" in str(events)
    assert plane.nodes()["n1"].drained_by_us
    plane.drain({"n1": CHANGED}, 0)
    server.end_leaving_pods()
    plane.begin({"n2": "by hand"})
    plane.resume(["n1", "n2", "n3"])
    assert {name: each.cordoned for name, each in plane.nodes().items()} == {"n1": False, "n2": True}
    plane.remove(["n2", "n9"])
    assert set(plane.nodes()) == {"n1"}
    plane.await_answers(["n1"])
