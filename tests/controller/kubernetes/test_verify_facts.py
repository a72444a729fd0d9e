"""The facts for `verify`, from a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from gpucluster.controller.kubernetes import dns, person_objects, verify_facts
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from tests.controller.kubernetes.api_server import needs_api_server, running
from tests.controller.kubernetes.objects import node


def test_without_an_api_server_each_fact_reports_why_it_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\necho "The connection to the server 127.0.0.1:1 was refused" >&2\nexit 1\n')
    program.chmod(0o755)

    def state() -> dict[str, str]:
        raise AgentError("this host has no control plane")

    found = verify_facts.collect(Kubectl("/none", str(program)), state)
    for name in ("kubernetes_nodes", "kubernetes_control_plane", "kubernetes_names", "kubernetes_homes"):
        assert found[name] is None
        assert found[f"{name}_error"]
    json.dumps(found)


@needs_api_server
def test_facts_of_a_real_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_facts, "NAMES_IN_S", 0.0)  # no DNS runs here
    monkeypatch.setattr(verify_facts, "BINDS_IN_S", 0.0)  # nothing binds a claim here
    with running(tmp_path) as server:
        claim = {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "home", "namespace": "user-ann-b-5001"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }  # fmt: skip
        person = person_objects.KubernetesUser("ann_b", 5001, (5001,), "/home/ann_b")
        notes = {person_objects.USER_NAME: person.name}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": person.namespace, "annotations": notes}}
        other = {**claim, "metadata": {"name": "other", "namespace": person.namespace}}
        server.create(node("gpu-1"), space, claim, other)
        found = verify_facts.collect(server.kubectl, lambda: {"ready": True})
    assert [each["name"] for each in found["kubernetes_nodes"]] == ["gpu-1"]
    assert found["kubernetes_homes"] == [{"user": "ann_b", "namespace": "user-ann-b-5001", "phase": "Pending"}]
    assert found["kubernetes_control_plane"] == {"ready": True}
    # There is no DNS service in it.
    assert "kube-dns" in found["kubernetes_names_error"]


class _Services:
    """What the API server reports of services; a double."""

    def get(self, _kind: str, name: str, _namespace: str) -> dict[str, Any]:
        return {"spec": {"clusterIP": {"kube-dns": "10.96.0.10", "kubernetes": "10.96.0.1"}[name]}}


def test_a_server_of_names_may_take_some_seconds_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError(1, "Operation not permitted"), Failed("the DNS server answers with error 2")]

    def ask(_server: str, _name: str) -> str:
        if refusals:
            raise refusals.pop()
        return "10.96.0.1"

    monkeypatch.setattr(dns, "ask", ask)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    assert verify_facts.names(cast(Kubectl, _Services()))["answer"] == "10.96.0.1"
    assert not refusals


def test_a_server_of_names_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_server: str, _name: str) -> str:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(dns, "ask", refuse)
    monkeypatch.setattr(verify_facts, "NAMES_IN_S", -1.0)
    found = verify_facts.names(cast(Kubectl, _Services()))
    assert (found["answer"], "not permitted" in found["error"]) == ("", True)
