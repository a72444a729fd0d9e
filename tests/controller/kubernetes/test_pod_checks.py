"""The pods of `verify`: what the API takes of them, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected
from gpucluster.controller.kubernetes import pod_checks
from gpucluster.controller.kubernetes.pod_checks import FAILED, LABEL, NAMESPACE, NOT_JUDGED, READY, PodNode, state_of
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.controller.kubernetes.objects import node, pod

POOLS = [{"pool": "compute", "nodes": {"compute-1": "10.0.1.11", "compute-2": "10.0.1.12"}, "rdma": {}}]
VF = {"container": {"resources": {"limits": {"nvidia.com/rdma-vf": "2"}, "requests": {"nvidia.com/rdma-vf": "2"}}}}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("api"), "--allow-privileged=true") as started:
        started.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for number, name in enumerate(("10.0.1.11", "10.0.1.12")):
            proxy = pod(f"proxy-{number}", name, "", **{"k8s-app": "kube-proxy"})
            started.create(node(name), proxy)
        yield started


def _kubelet(api: ApiServer, phase: str, status: dict[str, Any]) -> None:
    """Give the pods of verify a status, as kubelet and the scheduler do."""
    for each in api.kubectl.list("pods", NAMESPACE, labels=LABEL):
        if not each["metadata"].get("deletionTimestamp"):
            whole = {**each, "status": {"phase": phase, **status}}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{each['metadata']['name']}/status"
            api.kubectl.run("replace", f"--raw={path}", "--filename=-", text=json.dumps(whole))


def _left(api: ApiServer) -> list[dict[str, Any]]:
    return api.kubectl.list("pods", NAMESPACE, labels=LABEL)


@needs_api_server
def test_pods_are_asked_in_a_ring_and_removed(api: ApiServer) -> None:
    seen: list[dict[str, Any]] = []

    def call(name: str, words: Sequence[str]) -> str:
        number = int(name[-1])
        if words[0] == "look":
            seen.extend(_left(api))
            return json.dumps({"interfaces": {"eth0": f"10.244.{number}.2", "net1": f"192.168.0.{number}"},
                               "rdma": [], "verbs": []})  # fmt: skip
        calls = json.loads(words[1])
        return json.dumps([[way, "timed out" if (way, number) == ("net1", 1) else ""] for way, _to, _from in calls])

    found = pod_checks.collect(api.kubectl, POOLS, call, lambda _seconds: _kubelet(api, "Running", {}))
    assert [found["nodes"][name]["state"] for name in ("compute-1", "compute-2")] == [READY, READY]
    assert [(each["from"], each["to"], each["interface"], each["error"]) for each in found["pairs"]] == [
        ("compute-1", "compute-2", "eth0", ""), ("compute-1", "compute-2", "net1", ""),
        ("compute-2", "compute-1", "eth0", ""), ("compute-2", "compute-1", "net1", "timed out"),
    ]  # fmt: skip
    (container,) = seen[0]["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip
    assert seen[0]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert _left(api) == []


@needs_api_server
def test_a_node_that_takes_no_pod_is_not_judged_and_reports_why(api: ApiServer) -> None:
    why = "0/2 nodes are available: 1 was unschedulable."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    found = pod_checks.collect(
        api.kubectl, POOLS, lambda *_: "", lambda _s: _kubelet(api, "Pending", {"conditions": [condition]}), 0.5
    )
    assert {each["state"] for each in found["nodes"].values()} == {NOT_JUDGED}
    assert all(why in each["why"] for each in found["nodes"].values())
    assert (found["pairs"], _left(api)) == ([], [])


@needs_api_server
def test_pods_are_removed_when_it_is_interrupted(api: ApiServer) -> None:
    def stopped(_seconds: float) -> None:
        assert len(_left(api)) == 2
        raise Disconnected

    with pytest.raises(Disconnected):
        pod_checks.collect(api.kubectl, POOLS, lambda *_: "", stopped)
    assert _left(api) == []


@needs_api_server
def test_devices_that_a_users_pod_has_are_left_to_it(api: ApiServer) -> None:
    busy = pod("training", "10.0.1.11", "")
    busy["spec"]["containers"] = [{"name": "main", "image": "x", **VF["container"]}]
    api.create(busy)
    asked: list[Any] = []

    def look(_name: str, words: Sequence[str]) -> str:
        asked.extend(each["spec"]["containers"][0]["resources"]["limits"] for each in _left(api))
        return json.dumps({"interfaces": {}, "rdma": [], "verbs": []} if words[0] == "look" else [])

    pools = [{"pool": "compute", "nodes": {"compute-1": "10.0.1.11"}, "rdma": VF}]
    found = pod_checks.collect(api.kubectl, pools, look, lambda _s: _kubelet(api, "Running", {}))
    assert found["nodes"]["compute-1"]["rdma_taken"] == "the pod default/training has the devices"
    assert asked == [{"memory": "128Mi"}]


@pytest.mark.parametrize(
    ("status", "events", "state", "says"),
    [
        ({"phase": "Running"}, {}, READY, ""),
        ({"phase": "Failed", "message": "evicted"}, {}, FAILED, "evicted"),
        ({"phase": "Pending"}, {"p": "failed to set up sandbox"}, FAILED, "failed to set up sandbox"),
        ({"phase": "Pending"}, {}, NOT_JUDGED, "did not start in time"),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull"}}}]},
            {},
            FAILED,
            "ErrImageNeverPull",
        ),
    ],
)
def test_what_a_pod_reports_of_itself(status: dict[str, Any], events: dict[str, str], state: str, says: str) -> None:
    found = state_of({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": status}, events)
    assert found["state"] == state
    assert says in found["why"]


def test_a_pod_asks_for_rdma_as_jobs_do_and_has_no_more_rights() -> None:
    made = pod_checks.manifest("p", PodNode("a", "a", "compute", VF), "image", rdma=True)["spec"]
    assert made["containers"][0]["resources"]["limits"]["nvidia.com/rdma-vf"] == "2"
    assert made["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "hostNetwork" not in made
