"""Measurements by pods: what the API takes of them, which nodes they are for, how they end. No program runs here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.kubernetes.pod_checks import NAMESPACE
from gpucluster.controller.measure import pods, request
from gpucluster.controller.measure.pods import IDLE, LABEL, Pods, manifest, states
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.controller.kubernetes.objects import node, pod

GIVEN: dict[str, Any] = {
    "id": "1", "kind": "nccl", "nodes": ["gpu-1"], "partition": "gpu", "minutes": 10, "gpus": 8,
    "image": "registry.example/nccl:1", "arguments": ["-b", "1G", "-g", "8"], "resource": "nvidia.com/gpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("api")) as started:
        started.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        started.create(node("gpu-1"), node("gpu-2"))
        yield started


class Talk(RequestChannel):
    """The other end; instead of waiting, it does what kubelet would do."""

    def __init__(self, kubelet: Callable[[], None]) -> None:
        here, self.there = os.pipe()
        answers, target = os.pipe()
        super().__init__(here, target)
        self.kubelet, self.answers = kubelet, answers

    def wait(self, seconds: float) -> None:
        self.kubelet()


def _status(api: ApiServer, **status: Any) -> None:
    for each in api.kubectl.list("pods", NAMESPACE, labels=LABEL):
        whole = {**each, "status": status}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{each['metadata']['name']}/status"
        api.kubectl.run("replace", f"--raw={path}", "--filename=-", text=json.dumps(whole))


def _ended(code: int) -> dict[str, Any]:
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [
            {"name": "measure", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": {"exitCode": code}}}
        ],
    }  # fmt: skip


@pytest.mark.parametrize("change", [{"nodes": ["a", "b"]}, {"image": ""}, {"kind": "rdma", "nodes": ["a", "b"]}])
def test_what_one_pod_can_not_measure_is_refused(change: dict[str, Any]) -> None:
    asked = request.read({**GIVEN, "devices": ["mlx5_0"], **change})
    with pytest.raises(Refused, match="only NCCL on one node"):
        manifest(asked, "name", "gpu-1", "session")


def test_only_ready_nodes_whose_gpus_are_free_are_idle() -> None:
    busy = pod("training", "busy", "")
    busy["spec"]["containers"] = [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    ended = {**busy, "spec": {**busy["spec"], "nodeName": "free"}, "status": {"phase": "Succeeded"}}
    cordoned, unhealthy = node("cordoned"), node("unhealthy")
    cordoned["spec"] = {"unschedulable": True}
    unhealthy["spec"] = {"taints": [{"key": "gpucluster.io/unhealthy", "value": "gpu_count", "effect": "NoSchedule"}]}
    found = [node("free"), node("silent", "Unknown"), node("busy"), cordoned, unhealthy]
    assert states(found, [busy, ended]) == {
        "free": IDLE, "silent": "not ready", "busy": "used by the pod default/training", "cordoned": "cordoned",
        "unhealthy": "unhealthy",
    }  # fmt: skip


@needs_api_server
def test_each_node_gets_a_pod_and_its_log_is_the_answer(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def kubelet() -> None:
        seen.extend(api.kubectl.list("pods", NAMESPACE, labels=LABEL))
        _status(api, **_ended(0))

    monkeypatch.setattr(Pods, "_log", lambda _self, name: f"the log of {name}")
    asked = [request.read({**GIVEN, "id": str(number), "nodes": [f"gpu-{number}"]}) for number in (1, 2)]
    answers = Pods(api.kubectl, "abcd", 60, Talk(kubelet)).run(asked)
    assert {(each["id"], each["outcome"], each["status"]) for each in answers} == {("1", "ended", 0), ("2", "ended", 0)}
    assert all(each["output"].startswith("the log of gpucluster-measure-abcd-") for each in answers)
    (container,) = seen[0]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert seen[0]["spec"]["securityContext"]["runAsNonRoot"] is True
    terms = seen[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["gpu-1"]
    assert api.kubectl.list("pods", NAMESPACE, labels=LABEL) == []


@needs_api_server
@pytest.mark.parametrize(
    ("status", "outcome", "why"),
    [
        ({"phase": "Pending"}, "not_started", "it did not start within 0 s"),
        (_ended(3), "ended", ""),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "too_long", "did not end within 10 minutes"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "lost", "low on memory"),
    ],
)
def test_how_it_ends(
    api: ApiServer, status: dict[str, Any], outcome: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pods, "_log", lambda *_: "")
    (answer,) = Pods(api.kubectl, "beef", 0, Talk(lambda: _status(api, **status))).run([request.read(GIVEN)])
    assert answer["outcome"] == outcome, answer
    assert why in answer["why"]
    assert answer["status"] == (3 if outcome == "ended" else 0)


@needs_api_server
def test_a_log_that_can_not_be_read_ends_that_measurement_only(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def log(_self: Pods, name: str) -> str:
        if name.endswith("-1"):
            raise Failed("no route to host")
        return "a log"

    monkeypatch.setattr(Pods, "_log", log)
    asked = [request.read({**GIVEN, "id": str(number), "nodes": [f"gpu-{number}"]}) for number in (1, 2)]
    answers = Pods(api.kubectl, "feed", 60, Talk(lambda: _status(api, **_ended(0)))).run(asked)
    found = {each["id"]: (each["outcome"], each["why"]) for each in answers}
    assert found == {"1": ("lost", "its output can't be read: no route to host"), "2": ("ended", "")}


@needs_api_server
def test_nothing_is_left_when_no_client_waits_any_more(api: ApiServer) -> None:
    def gone() -> None:
        assert len(api.kubectl.list("pods", NAMESPACE, labels=LABEL)) == 1
        raise Disconnected

    with pytest.raises(Disconnected):
        Pods(api.kubectl, "cafe", 60, Talk(gone)).run([request.read(GIVEN)])
    assert api.kubectl.list("pods", NAMESPACE, labels=LABEL) == []


@needs_api_server
def test_what_a_killed_session_has_left_is_removed(api: ApiServer) -> None:
    left = manifest(request.read(GIVEN), "gpucluster-measure-dead-1", "gpu-1", "dead")
    api.create(left)
    assert pods.remove(api.kubectl) == ["gpucluster-measure-dead-1"]
    assert api.kubectl.list("pods", NAMESPACE, labels=LABEL) == []
