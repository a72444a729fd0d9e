"""The pods of `verify --level full` on a whole cluster: they run, reach one another, and are gone afterwards."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from gpucluster.waiting import wait_until
from tests.e2e.kubernetes_site import KubernetesSite

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SPACE = "gpucluster-system"
PROGRAM = ("/usr/local/bin/gpucluster-agent", "kubernetes", "pods")
OURS = ("pods", f"--namespace={SPACE}", "--selector=gpucluster.io/verify")


def _pools(kubernetes: KubernetesSite) -> str:
    return json.dumps([{"pool": "work", "nodes": {name: name for name in kubernetes.nodes()}, "rdma": {}}])


def _found(kubernetes: KubernetesSite) -> dict[str, Any]:
    said = json.loads(kubernetes.on(kubernetes.controller, *PROGRAM, stdin=_pools(kubernetes)))
    assert "kubernetes_pods_error" not in said, said
    found: dict[str, Any] = said["kubernetes_pods"]
    return found


def test_pods_of_verify_reach_one_another_and_are_removed(kubernetes: KubernetesSite) -> None:
    found = _found(kubernetes)
    assert {each["state"] for each in found["nodes"].values()} == {"ready"}, found
    assert [(pair["interface"], pair["error"]) for pair in found["pairs"]] == [("eth0", "")] * 2
    assert wait_until(lambda: kubernetes.get(*OURS)["items"] == [], 30, 0.5)


def test_a_cordoned_node_is_not_judged(kubernetes: KubernetesSite) -> None:
    first, second = kubernetes.nodes()
    kubernetes.kubectl("cordon", first)
    try:
        found = _found(kubernetes)
    finally:
        kubernetes.kubectl("uncordon", first)
    assert (found["nodes"][first]["state"], found["nodes"][second]["state"]) == ("not judged", "ready")
    assert "unschedulable" in found["nodes"][first]["why"]


def test_verify_at_level_full_says_it(kubernetes: KubernetesSite) -> None:
    _status, said = kubernetes.run("verify", "--level", "full")
    of_pods = [each for each in said[-1]["data"]["checks"] if each["check"] == "kubernetes_pod_network"]
    assert [each["status"] for each in of_pods] == ["pass", "pass"], of_pods


def test_an_interrupted_run_leaves_no_pods(kubernetes: KubernetesSite) -> None:
    node, controller = next(iter(kubernetes.nodes())), kubernetes.hosts()[kubernetes.controller]
    write = f"echo $$ > /run/verify-test.pid; exec {' '.join(PROGRAM)}"
    # Its pod waits for as long as the node is cordoned, so the signal comes in the middle.
    kubernetes.kubectl("cordon", node)
    try:
        argv = ["podman", "exec", "--interactive", controller, "sh", "-c", write]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdin
            running.stdin.write(_pools(kubernetes))
            running.stdin.close()
            assert wait_until(lambda: len(kubernetes.get(*OURS)["items"]) == 2, 60, 0.5)
            kubernetes.on(kubernetes.controller, "sh", "-c", "kill -TERM $(cat /run/verify-test.pid)")
            running.wait(timeout=60)
    finally:
        kubernetes.kubectl("uncordon", node)
    assert wait_until(lambda: kubernetes.get(*OURS)["items"] == [], 60, 0.5)
