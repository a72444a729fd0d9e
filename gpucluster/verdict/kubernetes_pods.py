"""Checks of Kubernetes by pods on the nodes: what they have of RDMA, and how they reach one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.controller.kubernetes.pod_checks import FAILED, READY
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Profile, Scope, Status
from gpucluster.text import count
from gpucluster.verdict.expectation import Expectation, cluster_check

FACT = "kubernetes_pods"
_FULL = (Profile.FULL,)
#: The limit of the program on the controller; see gpucluster.controller.facts.services.
_SECONDS = 170.0
_PODS = "gpucluster ssh -- sudo kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace gpucluster-system"


def _nodes_with_rdma(expected: Expectation) -> list[str]:
    desired = expected.kubernetes
    return [node for node in expected.nodes if desired.rdma.get(node)] if desired else []


def _start(seen: Measurements, node: str) -> tuple[Mapping[str, Any], CheckOutcome | None]:
    """What is known of the pod of a node, and the outcome where it did not run."""
    about: Mapping[str, Any] = seen[FACT]["nodes"].get(node) or {}
    if about.get("state") == READY:
        return about, None
    why = str(about.get("why") or "it got no pod")
    if about.get("state") == FAILED:
        return about, CheckOutcome(Status.FAIL, why)
    return about, CheckOutcome(Status.SKIP, f"not judged, because {why}")


@cluster_check(
    "pods of a node reach those of the next", FACT, scope=Scope.NODE, profiles=_FULL, timeout_s=_SECONDS,
    applies=lambda expected, _subject: "" if len(expected.nodes) > 1 else "one node has no network to others",
    subjects=lambda expected: expected.nodes if expected.kubernetes else (),
    remedy="See the pods of the network in the namespace kube-system, and the routes of both hosts: ip route",
)  # fmt: skip
def _kubernetes_pod_network(seen: Measurements, _expected: Expectation, node: str) -> CheckOutcome:
    """The pod of the node reaches that of the next one, by each interface that both have."""
    _about, ended = _start(seen, node)
    if ended:
        return ended
    pairs = [pair for pair in seen[FACT]["pairs"] if pair["from"] == node]
    if not pairs:
        return CheckOutcome(Status.SKIP, "not judged, because no other node has a pod of verify that runs")
    failures = [
        f"{node} does not reach {pair['to']} by {pair['interface']} ({pair['address']}): {pair['error']}"
        for pair in pairs
        if pair["error"]
    ]
    good = f"reaches {pairs[0]['to']} by {', '.join(pair['interface'] for pair in pairs)}"
    return CheckOutcome(Status.FAIL if failures else Status.PASS, "; ".join(failures) or good, {"pairs": pairs})


@cluster_check(
    "pods have the RDMA devices", FACT, scope=Scope.NODE, profiles=_FULL, timeout_s=_SECONDS,
    subjects=_nodes_with_rdma,
    remedy=f"See what gives pods their devices: {_PODS} get pods",
)  # fmt: skip
def _kubernetes_rdma(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """A pod that asks for RDMA as jobs do has the devices of the shape."""
    assert expected.kubernetes is not None
    about, ended = _start(seen, node)
    if ended:
        return ended
    number = len(expected.kubernetes.rdma[node])
    if about["rdma_taken"]:
        return CheckOutcome(Status.SKIP, f"not judged, because {about['rdma_taken']}")
    if about["rdma_missing"]:
        named = ", ".join(about["rdma_missing"][:2])
        if expected.hardware_emulated:
            return CheckOutcome(Status.SKIP, f"the hardware is emulated: no network {named} is defined")
        return CheckOutcome(Status.FAIL, f"Kubernetes has no network {named}", about)
    moved = sorted(name for name in about["interfaces"] if name != "eth0")
    if expected.hardware_emulated:
        what = f"a pod gets {', '.join(moved)}" if moved else "there are no devices"
        return CheckOutcome(Status.SKIP, f"the hardware is emulated: {what}", {"interfaces": about["interfaces"]})
    evidence = {key: about[key] for key in ("rdma", "verbs", "interfaces")}
    devices = f"{len(about['rdma'])} of {count(number, 'device')}, {len(about['verbs'])} files of them"
    good = len(about["rdma"]) >= number and len(about["verbs"]) >= number
    return CheckOutcome(Status.PASS if good else Status.FAIL, devices, evidence)


CHECKS = (
    _kubernetes_pod_network,
    _kubernetes_rdma,
)
