"""kubectl, nodes and drains against a real API server."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.controller.conversation import RequestChannel
from gpucluster.controller.kubernetes import namespaces, nodes
from gpucluster.controller.kubernetes.__main__ import answer
from gpucluster.controller.kubernetes.drain import NodeDrain
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import ApiServer, minor, needs_api_server, running
from tests.controller.kubernetes.objects import budget, node, pod

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server: ApiServer = request.getfixturevalue("server")
        for kind in ("pods", "poddisruptionbudgets"):
            server.kubectl.run("delete", kind, "--all", "--namespace=default", "--grace-period=0", "--force")
        server.kubectl.run("delete", "nodes", "--all")


def test_nodes_are_listed_with_what_is_judged(server: ApiServer) -> None:
    server.create(node("n2", "Unknown"), node("n1"))
    listed = nodes.list_nodes(server.kubectl)
    assert [(each["name"], each["ready"], each["version"], each["address"]) for each in listed] == [
        ("n1", "True", "v1.20.2", "10.0.1.2"),
        ("n2", "Unknown", "v1.20.2", "10.0.1.2"),
    ]
    assert listed[0]["capacity"] == {"nvidia.com/gpu": "8"}


def test_a_drain_evicts_services_and_leaves_what_belongs_to_the_node(server: ApiServer) -> None:
    server.create(
        node("n1"), node("n2"), budget("web", 2, 1, 2, app="web"),
        pod("web-1", "n1", app="web"), pod("agent-1", "n1", "DaemonSet"), pod("elsewhere", "n2"),
        pod("done", "n1", "Job", phase="Succeeded", restart="Never"),
    )  # fmt: skip
    assert NodeDrain(server.kubectl, server.end_leaving_pods).drain({"n1": "gpucluster: test", "gone": "x"}, 60) == [
        "n1"
    ]
    assert {each["metadata"]["name"] for each in server.kubectl.list("pods")} == {"agent-1", "elsewhere", "done"}
    drained = nodes.list_nodes(server.kubectl)[0]
    assert (drained["cordoned"], drained["reason"]) == (True, "gpucluster: test")
    assert nodes.uncordon(server.kubectl, "n1") is True
    assert nodes.uncordon(server.kubectl, "n1") is False
    again = nodes.list_nodes(server.kubectl)[0]
    assert (again["cordoned"], again["reason"], again["taints"]) == (False, "", [])


def test_a_budget_that_refuses_is_named_with_its_pod_and_the_node_stays_cordoned(server: ApiServer) -> None:
    server.create(
        node("n1"), budget("web", 2, 2, 2, app="web"), pod("web-1", "n1", app="web"), pod("free", "n1", app="other")
    )
    seen: list[str] = []
    with pytest.raises(Failed) as raised:
        NodeDrain(server.kubectl, server.end_leaving_pods, iter((0.0, 1.0, 99.0)).__next__).drain(
            {"n1": "test"}, 10, lambda left: seen.append(str(left.refused))
        )
    assert "pod default/web-1 can't be evicted: the disruption budget default/web wants 2" in raised.value.message
    assert "edit pdb web" in raised.value.hint
    assert "default/web" in seen[0]
    assert [each["metadata"]["name"] for each in server.kubectl.list("pods")] == ["web-1"]
    assert nodes.list_nodes(server.kubectl)[0]["cordoned"]


def test_work_is_waited_for_and_deleted_only_without_a_limit_of_time(server: ApiServer) -> None:
    server.create(node("n1"), pod("train", "n1", "Job", restart="Never"))
    with pytest.raises(Failed, match="still running: default/train"):
        NodeDrain(server.kubectl, server.end_leaving_pods, iter((0.0, 99.0)).__next__).drain({"n1": "test"}, 10)
    assert not server.kubectl.get("pod", "train", "default")["metadata"].get("deletionTimestamp")
    NodeDrain(server.kubectl, server.end_leaving_pods).drain({"n1": "test"}, 0)
    server.end_leaving_pods()
    assert server.kubectl.list("pods") == []


def test_a_cordon_of_an_operator_stays(server: ApiServer) -> None:
    server.create(node("n1"))
    server.kubectl.run("cordon", "n1")
    NodeDrain(server.kubectl, server.end_leaving_pods).drain({"n1": "test"}, 60)
    assert nodes.uncordon(server.kubectl, "n1") is False
    assert nodes.uncordon(server.kubectl, "n1", anybody=True) is True


def test_requests_come_through_the_conversation(server: ApiServer) -> None:
    server.create(node("n1"))
    source, target = os.pipe()
    try:
        talk = RequestChannel(source, target)
        assert [each["name"] for each in answer(server.kubectl, talk, "nodes", {})] == ["n1"]
        answer(server.kubectl, talk, "remove", {"node": "n1"})
        assert answer(server.kubectl, talk, "nodes", {}) == []
        assert not select.select([source], [], [], 0)[0]
    finally:
        os.close(source)
        os.close(target)


def test_a_namespace_that_does_not_end_names_what_keeps_it(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "PATIENCE_S", 0.0)
    # The namespace controller writes these conditions; there is none here.
    server.kubectl.run("create", "namespace", "stays")
    server.kubectl.delete("namespace", "stays")
    now = server.kubectl.get("namespace", "stays")
    condition = {
        "type": "NamespaceFinalizersRemaining", "status": "True", "reason": "SomeFinalizersRemain",
        "message": "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances",
        "lastTransitionTime": "2026-11-23T00:00:00Z",
    }  # fmt: skip
    now["status"]["conditions"] = [condition]
    server.kubectl.run("replace", "--raw=/api/v1/namespaces/stays/status", "--filename=-", text=json.dumps(now))
    (found,) = namespaces.look(server.kubectl)
    assert found["name"] == "stays"
    assert "example.com/keep" in found["message"]
    assert "remove them from the objects" in found["hint"]


def test_what_is_not_there_is_told_apart(server: ApiServer) -> None:
    with pytest.raises(ApiFailed) as raised:
        server.kubectl.get("node", "nobody")
    assert raised.value.kind == faults.NOT_FOUND
    assert server.kubectl.minor() == minor()


def test_a_server_that_is_dead_is_reported_in_one_line(tmp_path: Path, server: ApiServer) -> None:
    text = server.kubeconfig.read_text()
    dead = tmp_path / "dead.conf"
    dead.write_text(text.replace(json.loads(text)["clusters"][0]["cluster"]["server"], "https://127.0.0.1:1"))
    with pytest.raises(ApiFailed) as raised:
        nodes.list_nodes(Kubectl(str(dead), server.kubectl._argv[0]))
    assert raised.value.kind == faults.DEAD
    assert "gives no answer" in raised.value.message
    assert "gpucluster kubernetes status" in raised.value.hint
    with pytest.raises(ApiFailed, match="no control plane of Kubernetes yet"):
        nodes.list_nodes(Kubectl(str(tmp_path / "none.conf"), server.kubectl._argv[0]))
