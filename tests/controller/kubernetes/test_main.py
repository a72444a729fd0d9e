"""What an operator's machine may ask of the control plane, and how that fails. test_api_server.py has a real API."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected
from gpucluster.controller.kubernetes import __main__ as program
from gpucluster.controller.kubernetes import api_stability, certificates, nodes, pod_checks
from gpucluster.controller.kubernetes.drain import NodeDrain
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from tests.controller.measure.requests import talk


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    """No API server is there."""
    return Kubectl(str(tmp_path / "none"), str(tmp_path / "no-program"))


def answer(kubectl: Kubectl, operation: object, arguments: object = None) -> Any:
    return program.answer(kubectl, talk()[0], operation, {} if arguments is None else arguments)


def test_what_is_not_an_operation_is_refused(kubectl: Kubectl) -> None:
    with pytest.raises(Refused, match="there is no operation 'explode'") as raised:
        answer(kubectl, "explode")
    assert "etcd.compact" in raised.value.hint
    with pytest.raises(Refused, match="the arguments are not an object"):
        answer(kubectl, "nodes", [])


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("cordon", {}),
        ("cordon", {"reasons": {}}),
        ("cordon", {"reasons": ["gpu-1"]}),
        ("cordon", {"reasons": {"--all": "x"}}),
        ("drain", {"reasons": {"gpu-1": "x"}, "seconds": "soon"}),
        ("drain", {"reasons": {"gpu 1": "x"}}),
        ("uncordon", {}),
        ("uncordon", {"node": "--all"}),
        ("remove", {"node": "../x"}),
        ("certificates.renew", {"within_days": "soon"}),
    ],
    ids=str,
)
def test_a_request_that_can_not_be_one_is_refused_before_anything_is_asked(
    operation: str, arguments: dict[str, Any], kubectl: Kubectl
) -> None:
    with pytest.raises(Refused):
        answer(kubectl, operation, arguments)


def test_only_nodes_that_are_there_are_cordoned(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    cordoned: list[tuple[str, str]] = []
    monkeypatch.setattr(nodes, "list_nodes", lambda _kubectl: [{"name": "gpu-1"}, {"name": "gpu-2"}])
    monkeypatch.setattr(nodes, "cordon", lambda _kubectl, name, reason: cordoned.append((name, reason)))
    assert answer(kubectl, "cordon", {"reasons": {"gpu-2": "repair", "gpu-7": "repair"}}) == ["gpu-2"]
    assert cordoned == [("gpu-2", "repair")]


def test_a_wait_of_a_drain_has_an_upper_limit(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def drain(_self: object, _reasons: object, seconds: float, _on_left: object) -> None:
        limits.append(seconds)

    monkeypatch.setattr(NodeDrain, "drain", drain)
    for seconds in (-5, 60, 1e12):
        answer(kubectl, "drain", {"reasons": {"gpu-1": "x"}, "seconds": seconds})
    assert limits == [0.0, 60.0, 7 * 86400.0]


def test_the_conversation_goes_on_after_an_error(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_kubectl: object) -> None:
        raise OSError(28, "No space left on device", "/var/lib/x")

    monkeypatch.setattr(nodes, "list_nodes", full)
    channel, answers = talk({"operation": "explode"}, {"operation": "nodes"}, {"operation": "version"})
    assert program.serve(channel, kubectl) == 0
    messages = [json.loads(line)["error"]["message"] for line in os.read(answers, 1 << 16).splitlines()]
    assert messages[0] == "there is no operation 'explode'"
    assert messages[1] == "/var/lib/x: No space left on device"
    assert len(messages) == 3


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_what_pods_find_is_printed_also_where_it_fails(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pod_checks, "collect", lambda _kubectl, request: {"for": request})
    assert program.print_pods(kubectl, '{"nodes": []}') == 0
    assert printed(capsys) == {"kubernetes_pods": {"for": {"nodes": []}}}
    assert program.print_pods(kubectl, "{") == 0
    assert printed(capsys) == {"kubernetes_pods": None, "kubernetes_pods_error": "standard input is not JSON"}

    for error, words in (
        (Failed("no answer"), "no answer"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (Disconnected(), "it was interrupted"),
    ):

        def collect(_kubectl: object, _request: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(pod_checks, "collect", collect)
        assert program.print_pods(kubectl, "{}") == 0
        assert printed(capsys) == {"kubernetes_pods": None, "kubernetes_pods_error": words}


def test_commands_print_what_they_did(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certificates, "renew", lambda *_: ["apiserver.crt"])
    assert program.renew(kubectl) == 0
    monkeypatch.setattr(certificates, "renew", lambda *_: [])
    assert program.renew(kubectl) == 0
    monkeypatch.setattr(api_stability, "await_steady", lambda _kubectl: 2)
    assert program.await_server(kubectl) == 0
    assert capsys.readouterr().out.splitlines() == [
        "apiserver.crt: renewed", "no certificate expires soon", "the API server is ready; breaks: 2",
    ]  # fmt: skip


def test_the_controller_has_the_commands_of_every_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for command in ("serve", "routes", "grant"):
        assert program.main([command]) == 1
        assert "only root can run this" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        program.main(["nonsense"])
