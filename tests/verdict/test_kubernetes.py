"""What `verify` reports of a cluster with Kubernetes, by the facts of its controller."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpucluster.verdict.verdict import CheckResult
from tests.verdict.samples import CLAIMS, ENGINE, HEAD, KUBERNETES, NODES, TAINT, facts, verdict


def found(change: Callable[[dict[str, Any]], Any], **expected: Any) -> list[CheckResult]:
    """The findings that are no pass, after a change of the controller's facts."""
    reported = copy.deepcopy(facts(KUBERNETES))
    change(reported[HEAD])
    cluster = dataclasses.replace(KUBERNETES, **expected)
    return [each for each in verdict(cluster, reported).results if each.status != "pass"]


def test_a_cluster_that_is_as_it_should_be_passes() -> None:
    assert found(lambda _facts: None) == []


def of_engine(change: Callable[[dict[str, Any]], Any]) -> list[tuple[str, str, str]]:
    """Check, status and message of what is not a pass, with a control plane of Oracle."""
    reported = copy.deepcopy(facts(ENGINE))
    reported[HEAD]["kubernetes_control_plane"]["certificates"] = []
    change(reported[HEAD])
    results = verdict(ENGINE, reported).results
    return [(each.check, each.status, each.message) for each in results if each.status != "pass"]


def test_with_a_control_plane_of_oracle_no_certificates_are_checked_and_managed_nodes_are_counted() -> None:
    assert of_engine(lambda _facts: None) == []
    check = "kubernetes_managed_nodes"
    assert of_engine(lambda seen: seen["kubernetes_nodes"].pop()) == [
        (check, "fail", "has 1 node in Kubernetes, not 2")
    ]
    assert of_engine(lambda seen: seen["kubernetes_nodes"][-1].update(ready="Unknown", version="v1.33.0")) == [
        (check, "fail", "10.0.1.10: its kubelet is silent; 10.0.1.10: has kubelet v1.33.0, not v1.34.2")
    ]


def test_the_command_for_a_cordoned_node_has_the_name_that_the_server_knows() -> None:
    ((check, _status, said),) = of_engine(
        lambda seen: seen["kubernetes_nodes"][0].update(cordoned=True, registered="10.0.1.4")
    )
    assert (check, "uncordon 10.0.1.4" in said) == ("kubernetes_node", True)


def _node(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda seen: seen["kubernetes_nodes"][1].update(changed)


def _control(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda seen: seen["kubernetes_control_plane"].update(changed)


def _certificate(file: str, days: int) -> dict[str, Any]:
    return {"file": file, "days": days, "expires": "2026-12-01T00:00:00Z"}


_TAINT = {"key": "gpucluster.io/unhealthy", "value": "gpu_count", "effect": "NoSchedule"}
_FULL_DISK = {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        (lambda seen: seen["kubernetes_nodes"].pop(), "kubernetes_node", "is unknown to Kubernetes"),
        (_node(ready="Unknown"), "kubernetes_node", "its kubelet is silent"),
        (
            _node(ready="False", conditions=[{"type": "Ready", "status": "False", "message": "no CNI"}]),
            "kubernetes_node",
            "is not ready: no CNI",
        ),
        (_node(conditions=[_FULL_DISK]), "kubernetes_node", "has DiskPressure: kubelet has disk pressure"),
        (_node(cordoned=True), "kubernetes_node", "by an administrator"),
        (_node(cordoned=True), "kubernetes_node", "uncordon compute-2"),
        (_node(taints=[]), "kubernetes_node", "has no taint nvidia.com/gpu=present:NoSchedule"),
        (
            _node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]),
            "kubernetes_node",
            "has no taint nvidia.com/gpu=present:NoSchedule",
        ),
        (_node(taints=[_TAINT, TAINT]), "kubernetes_node", "the taint gpucluster.io/unhealthy=gpu_count"),
        (_node(version="v1.33.1"), "kubernetes_node", "has kubelet v1.33.1, not v1.34.2"),
        (_node(labels=[]), "kubernetes_node", "has the label gpucluster.io/pool=, not compute"),
        (_node(allocatable=["nvidia.com/gpu=7"]), "kubernetes_gpus", "7 of 8 GPUs"),
        (_node(allocatable=["nvidia.com/rdma-vf=15"]), "kubernetes_rdma_resource", "15 of 16 RDMA devices"),
        (
            lambda seen: seen["kubernetes_hardware"]["daemonsets"].clear(),
            "kubernetes_hardware",
            "there is no DaemonSet nvidia-device-plugin",
        ),
        (
            lambda seen: seen["kubernetes_hardware"]["daemonsets"].append({"name": "multus", "wanted": 2, "ready": 1}),
            "kubernetes_hardware",
            "multus is ready on 1 of 2 nodes",
        ),
        (
            lambda seen: seen["kubernetes_hardware"]["attachments"].remove("rdma-1"),
            "kubernetes_hardware",
            "missing: 1 network of RDMA interfaces: rdma-1",
        ),
        (_node(allocatable=[]), "kubernetes_gpus", "0 of 8 GPUs"),
        (
            _control(
                problems=[{"message": "etcd is full", "hint": "Run: gpucluster kubernetes compact", "serious": True}]
            ),
            "kubernetes_control_plane",
            "etcd is full (Run: gpucluster kubernetes compact)",
        ),
        (_control(ready=False), "kubernetes_control_plane", "the API server is not ready"),
        (
            _control(certificates=[_certificate("a.crt", 13), _certificate("b.crt", -1), _certificate("c.crt", 30)]),
            "kubernetes_certificates",
            "b.crt in -1 days (2026-12-01T00:00:00Z), a.crt in 13 days (2026-12-01T00:00:00Z)",
        ),
        (
            lambda seen: seen["kubernetes_names"].update(answer="", error="10.96.0.10 does not answer within 6 s"),
            "kubernetes_names",
            "does not answer",
        ),
        (lambda seen: seen["kubernetes_names"].update(answer="10.96.0.9"), "kubernetes_names", "not 10.96.0.1"),
        (
            lambda seen: seen["kubernetes_homes"][0].update(user="bob"),
            "kubernetes_homes",
            "no claim for the home of alice",
        ),
        (
            lambda seen: seen["kubernetes_homes"][0].update(phase="Pending"),
            "kubernetes_homes",
            "the home of alice is Pending",
        ),
    ],
)
def test_what_is_wrong_is_one_finding_with_words(
    change: Callable[[dict[str, Any]], Any], check: str, says: str
) -> None:
    findings = [each for each in found(change) if each.check == check]
    assert [each.status for each in findings] == ["fail"]
    assert says in findings[0].message


def test_a_node_whose_checks_are_silent_is_a_warning_and_not_ready_counts_more() -> None:
    silent = {"type": "GpuclusterHealthy", "status": "Unknown", "reason": "NoReport", "message": "no report since x"}
    (warned,) = found(_node(conditions=[silent]))
    assert (warned.check, warned.status, warned.message) == ("kubernetes_node", "warn", "no report since x")
    (failed,) = found(_node(conditions=[silent, _FULL_DISK | {"reason": ""}]))
    assert (failed.status, "no report since x" in failed.message) == ("fail", True)


def test_a_namespace_that_does_not_end_is_a_warning() -> None:
    (warned,) = found(_control(problems=[{"message": "namespace a does not end", "hint": "See it", "serious": False}]))
    assert (warned.check, warned.status) == ("kubernetes_control_plane", "warn")


def test_certificates_warn_below_30_days_and_show_when_they_end() -> None:
    (warned,) = found(_control(certificates=[_certificate("a.crt", 29), _certificate("b.crt", 30)]))
    assert (warned.check, warned.status) == ("kubernetes_certificates", "warn")
    assert warned.message == "they end soon: a.crt in 29 days (2026-12-01T00:00:00Z)"
    (passed,) = [each for each in verdict(KUBERNETES, facts(KUBERNETES)).results if each.check == warned.check]
    assert passed.message == "the first ends in 200 days (2027-06-11T00:00:00Z)"


def _divided(*allocatable: str) -> tuple[str, str]:
    """What is reported of a node whose pool divides GPUs, and that offers this."""
    assert KUBERNETES.kubernetes is not None
    gpus = {node: {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 42} for node in NODES}
    expected = dataclasses.replace(KUBERNETES, kubernetes=dataclasses.replace(KUBERNETES.kubernetes, gpus=gpus))
    seen = copy.deepcopy(facts(KUBERNETES))
    seen[HEAD]["kubernetes_nodes"][0]["allocatable"] = [*allocatable, "nvidia.com/rdma-vf=16"]
    results = verdict(expected, seen).results
    (judged,) = [each for each in results if (each.check, each.subject) == ("kubernetes_gpus", NODES[0])]
    return judged.status, judged.message


def test_divided_gpus_are_judged_by_what_the_pool_makes() -> None:
    good = "2 of 2 GPUs, 42 of 42 nvidia.com/mig-1g.10gb"
    assert _divided("nvidia.com/gpu=2", "nvidia.com/mig-1g.10gb=42") == ("pass", good)
    # What is there no more stays in the status of a node, as 0.
    left = ("nvidia.com/gpu=2", "nvidia.com/mig-1g.10gb=42", "nvidia.com/mig-3g.40gb=0")
    assert _divided(*left) == ("pass", good)
    whole = "8 of 2 GPUs, 0 of 42 nvidia.com/mig-1g.10gb"
    assert _divided("nvidia.com/gpu=8") == ("fail", whole)
    more = f"{good}, 1 nvidia.com/mig-3g.40gb, which its pool does not make"
    assert _divided("nvidia.com/gpu=2", "nvidia.com/mig-1g.10gb=42", "nvidia.com/mig-3g.40gb=1") == ("fail", more)


def _claimed(listed: str, *allocatable: str) -> tuple[str, str]:
    """What is reported of a node whose GPUs pods claim."""
    seen = copy.deepcopy(facts(CLAIMS))
    seen[HEAD]["kubernetes_nodes"][0]["registered"] = "10.0.1.4"
    seen[HEAD]["kubernetes_nodes"][0]["allocatable"] += allocatable
    seen[HEAD]["kubernetes_devices"] = [f"10.0.1.4={listed}"]
    results = verdict(CLAIMS, seen).results
    assert not [each for each in results if each.check == "kubernetes_gpus"], "no plugin offers them"
    (judged,) = [each for each in results if (each.check, each.subject) == ("kubernetes_claims", NODES[0])]
    return judged.status, judged.message


def test_gpus_that_pods_claim_are_those_that_the_driver_has_listed() -> None:
    assert _claimed("8") == _claimed("8", "nvidia.com/gpu=0") == ("pass", "8 of 8 GPUs")
    assert _claimed("7") == ("fail", "7 of 8 GPUs")
    both = "8 of 8 GPUs, and a device plugin offers 8 nvidia.com/gpu: both give away the same GPUs"
    assert _claimed("8", "nvidia.com/gpu=8") == ("fail", both)


def test_emulated_nodes_have_no_gpus_and_that_is_not_a_fault() -> None:
    without = found(
        lambda seen: [row.update(allocatable=[]) for row in seen["kubernetes_nodes"]], hardware_emulated=True
    )
    assert {(each.check, each.status) for each in without} == {
        ("kubernetes_gpus", "skip"), ("kubernetes_rdma_resource", "skip")
    }  # fmt: skip


def test_what_the_controller_could_not_find_out_is_unknown() -> None:
    def change(seen: dict[str, Any]) -> None:
        seen.update(kubernetes_nodes=None, kubernetes_nodes_error="the API server gives no answer")

    findings = found(change)
    assert {each.status for each in findings} == {"unknown"}
    assert all("the API server gives no answer" in each.message for each in findings)
