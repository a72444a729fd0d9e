"""What the API server refuses in the namespaces of users: the policies as they are, evaluated by a real CEL."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("cel_expr_python", reason="CEL is for tests on the operator's machine")

from gpucluster.controller.kubernetes.person_objects import Api, KubernetesUser, Quota, objects
from tests.jobs.launchers import test_kubernetes as jobs
from tests.kubernetes import schemas
from tests.kubernetes.admission import refusals

ADA = KubernetesUser("ada", 10001, (10001, 10100), "/home/ada")
MADE = objects((ADA,), Quota(), 36, Api(("10.0.0.2",), 6443))
POLICIES = [each for each in MADE if each["kind"] == "ValidatingAdmissionPolicy"]
(PLACE,) = (each for each in MADE if each["kind"] == "Namespace" and each["metadata"]["name"] == "user-ada")
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def _pod(
    annotations: Mapping[str, str] | None = None, container: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    main = {"name": "main", "image": "x", "securityContext": {"allowPrivilegeEscalation": False}, **(container or {})}
    identity = {"runAsUser": 10001, "runAsGroup": 10001}
    about: dict[str, Any] = {"name": "pod", **({"annotations": dict(annotations)} if annotations else {})}
    return {"metadata": about, "spec": {"securityContext": identity, "containers": [main], **spec}}


def _refused(pod: Mapping[str, Any], old: Mapping[str, Any] | None = None, resource: str = "pods") -> str:
    return "; ".join(refusals(POLICIES, PLACE, pod, old, resource))


@pytest.mark.parametrize(
    "pod",
    [
        _pod(),
        _pod(
            volumes=[
                {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "job", "configMap": {"name": "job"}},
                {"name": "token", "projected": {"sources": []}},
                {"name": "model", "image": {"reference": "x"}},
            ]
        ),
        _pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        # The API server adds these to each pod, and a site has taints of its own.
        _pod(
            tolerations=[
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "lab.example/reserved", "value": "ada"},
            ]
        ),
        _pod({NETWORKS: "gpucluster-system/bm-gpu4-8-rdma-0"}, GPU),
        _pod({NETWORKS: "gpucluster-system/rdma-vf"}, {"resources": {"limits": {"nvidia.com/rdma-vf": "16"}}}),
        _pod({"example.com/note": "x"}),
    ],
)
def test_pods_of_ordinary_work_are_accepted(pod: dict[str, Any]) -> None:
    assert _refused(pod) == ""


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        # The home share as the hosts know it, or another disk: mounted by root of the node.
        (_pod(volumes=[{"name": "h", "nfs": {"server": "10.0.0.3", "path": "/mnt/home"}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "hostPath": {"path": "/home"}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "iscsi": {"targetPortal": "10.0.0.3", "iqn": "x", "lun": 0}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "cephfs": {"monitors": ["10.0.0.3"]}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "csi": {"driver": "nfs.csi.k8s.io"}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "flexVolume": {"driver": "x/y"}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "gitRepo": {"repository": "x"}}]), "volumes"),
        (_pod(volumes=[{"name": "h", "of-a-later-release": {}}]), "volumes"),
        (_pod(volumes=[{"name": "m", "emptyDir": {}}, {"name": "h", "nfs": {"server": "x", "path": "/"}}]), "volumes"),
        # The host of the control plane, where etcd and the directory are, and nodes that are out of service.
        (_pod(tolerations=[{"operator": "Exists"}]), "tolerations"),
        (_pod(tolerations=[{"key": "", "operator": "Exists", "effect": "NoSchedule"}]), "tolerations"),
        (_pod(tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]), "tolerations"),
        (_pod(tolerations=[{"key": "node-role.kubernetes.io/master", "operator": "Exists"}]), "tolerations"),
        (_pod(tolerations=[{"key": "gpucluster.io/unhealthy", "operator": "Exists"}]), "tolerations"),
        (_pod(tolerations=[{"key": "gpucluster.io/out-of-service", "effect": "NoExecute"}]), "tolerations"),
        (_pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]), "tolerations"),
        # kubelet asks no scheduler, and looks at taints of the effect NoExecute only.
        (_pod(nodeName="demo-controller"), "nodeName"),
        # A node's RDMA interfaces without its GPUs, and the cluster's network with its rules left out.
        (_pod({NETWORKS: "gpucluster-system/bm-gpu4-8-rdma-0"}), NETWORKS),
        (_pod({NETWORKS: '[{"name": "bm-gpu4-8-rdma-0", "namespace": "gpucluster-system"}]'}), NETWORKS),
        (_pod({NETWORKS: "x/y"}, {"resources": {"limits": {"nvidia.com/gpu": "0"}}}), NETWORKS),
        (_pod({"v1.multus-cni.io/default-network": "gpucluster-system/bm-gpu4-8-rdma-0"}, GPU), "default-network"),
        # As before these rules.
        (_pod(securityContext={"runAsUser": 10002, "runAsGroup": 10001}), "runAsUser"),
        (_pod(securityContext={"runAsUser": 10001, "runAsGroup": 10001, "supplementalGroups": [7]}), "supplemental"),
        (_pod(securityContext={"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 7}), "fsGroup"),
        (_pod(container={"securityContext": {"allowPrivilegeEscalation": True}}), "allowPrivilegeEscalation"),
        (_pod(initContainers=[{"name": "i", "securityContext": {"runAsUser": 0}}]), "initContainers"),
        (_pod(securityContext={}), "runAsUser"),
    ],
)
def test_what_leads_out_of_the_namespace_is_refused_and_the_message_names_the_field(
    pod: dict[str, Any], why: str
) -> None:
    assert why in _refused(pod)


@pytest.mark.parametrize("access", ["none", "device", "sr-iov"])
@pytest.mark.parametrize("launcher", ["kubernetes-job", "jobset", "mpijob", "pytorchjob", "trainjob"])
def test_pods_of_our_own_templates_are_accepted(launcher: str, access: str) -> None:
    template, more = ("mpi_allreduce", {}) if launcher == "mpijob" else ("pytorch_ddp", {"synthetic": "1"})
    made = jobs.objects(template, launcher, 2, "BM.GPU4.8", rdma=access, uid="10001", gid="10001", pool="gpu", **more)
    for pod in jobs.pods(made):
        assert _refused({"metadata": {"name": "x", "annotations": jobs.pod_annotations(made)}, "spec": pod}) == ""


def test_a_pod_of_earlier_rules_can_still_end_and_can_not_change_to_the_worse() -> None:
    """A controller takes its finalizer off; without that a pod would stay for ever."""
    old = _pod(
        volumes=[{"name": "h", "nfs": {"server": "x", "path": "/"}}],
        securityContext={"runAsUser": 10001, "runAsGroup": 4711},  # a group that ada has left
    )
    old["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    ended = copy.deepcopy(old)
    del ended["metadata"]["finalizers"]
    assert _refused(ended, old) == ""
    assert "tolerations" in _refused(_pod(tolerations=[{"operator": "Exists"}]), _pod())
    # Multus reads annotations whenever a pod's sandbox is made.
    assert NETWORKS in _refused(_pod({NETWORKS: "x/y"}), _pod())
    assert NETWORKS in _refused(_pod({NETWORKS: "x/y"}), _pod({NETWORKS: "x/z"}))
    # The scheduler has chosen a node meanwhile.
    placed = _pod(nodeName="gpu-1")
    changed = copy.deepcopy(placed)
    changed["spec"]["containers"][0]["image"] = "y"
    assert _refused(changed, placed) == ""


def test_a_container_that_is_added_for_debugging_has_the_same_rules() -> None:
    added = [{"name": "d", "image": "x", "securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": True}}]
    assert "runAsUser" in _refused(_pod(ephemeralContainers=added), _pod(), "pods/ephemeralcontainers")


def test_a_service_takes_no_address_of_others() -> None:
    open_to_all = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 53}], "externalIPs": ["10.0.0.10"]}}
    plain = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 53}]}}
    assert "externalIPs" in _refused(open_to_all, resource="services")
    assert "externalIPs" in _refused(open_to_all, plain, "services")
    assert _refused(plain, resource="services") == ""


def test_every_kind_of_volume_of_the_newest_release_is_decided_and_not_forgotten() -> None:
    """By the schema: a kind that a later release adds is refused until it was reviewed."""
    kinds = schemas.fields("io.k8s.api.core.v1.Volume") - {"name"}
    accepted = {kind for kind in kinds if _refused(_pod(volumes=[{"name": "v", kind: {}}])) == ""}
    assert accepted == {
        "configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
    }  # fmt: skip
