"""What the objects of a job become, and what their state means: pure."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("yaml", reason="workloads are rendered on the operator's machine")

from gpucluster.controller.jobs.kubernetes_queue import KubernetesQueue
from gpucluster.controller.kubernetes import job_objects
from gpucluster.controller.kubernetes.job_objects import JOB, KIND, Manifest, Owner, WorkloadState
from gpucluster.kubernetes.manifests import workloads
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

ADA = Owner("ada", "user-ada", 10001, (10001, 10500), "/mnt/home/ada")
FIRST = "demo-0"


def work(nodes: int = 2, **more: Any) -> workloads.Workload:
    return workloads.Workload(
        "demo", nodes, "image:1", ("bash",), {"job.sh": "true"}, namespace="kube-system", uid=0, gid=0, **more
    )


def pod(name: str, phase: str = "Running", node: str = "gpu-1", **status: Any) -> Manifest:
    (spec,) = job_objects.pod_specs(workloads.kubernetes_job(work(1))[-1])
    for variable in spec["containers"][0]["env"]:
        if variable["name"] == "GPUCLUSTER_NODES":
            variable["value"] = "demo-0.demo demo-1.demo"
    about = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": about, "spec": {**spec, "nodeName": node}, "status": {"phase": phase, **status}}


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "image x:1 is not there"}}}]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason}}}]}


@pytest.mark.parametrize(
    "make",
    [workloads.kubernetes_job, workloads.jobset, workloads.mpijob, workloads.pytorchjob, workloads.trainjob],
)
def test_the_identity_in_the_request_does_not_count(make: Any) -> None:
    manifests = make(work())
    for made in job_objects.owned(manifests, "demo", ADA):
        assert made["metadata"]["namespace"] == "user-ada"
        assert made["metadata"]["annotations"][KIND] in job_objects.WORKLOADS
        for spec in job_objects.pod_specs(made):
            assert spec["securityContext"]["runAsUser"] == 10001
            assert spec["securityContext"]["runAsGroup"] == 10001
            (container,) = spec["containers"]
            assert {"name": "HOME", "value": "/mnt/home/ada"} in container["env"]
            assert {"name": "home", "mountPath": "/mnt/home/ada"} in container["volumeMounts"]
    specs = [spec for each in manifests for spec in job_objects.pod_specs(each)]
    assert specs
    assert {job_objects.number_of_pods(spec) for spec in specs} == {2}


@pytest.mark.parametrize(
    "manifests",
    [
        None,
        [],
        ["x"],
        [{"kind": "ClusterRoleBinding", "metadata": {"labels": {JOB: "demo"}}}],
        [{"kind": "ConfigMap", "metadata": {"labels": {JOB: "other"}}}],
        [{"kind": "ConfigMap", "metadata": {"labels": {JOB: "demo"}}}],
    ],
)
def test_objects_that_are_no_job_of_this_name_are_refused(manifests: Any) -> None:
    with pytest.raises(Refused):
        job_objects.owned(manifests, "demo", ADA)


@pytest.mark.parametrize(
    ("pods", "state", "said"),
    [
        ([pod("demo-0-abcde"), pod("demo-1-abcde", node="gpu-2")], WorkloadState("RUNNING", "gpu-1,gpu-2", ""), ""),
        ([pod("demo-0-abcde", "Succeeded"), pod("demo-1-x")], WorkloadState("COMPLETED", "gpu-1", "", 0), ""),
        ([pod("demo-0-abcde", "Failed", **ended(66))], WorkloadState("FAILED", "gpu-1", "", 66), ""),
        ([pod("demo-0-a", "Failed", **ended(137, "OOMKilled"))], WorkloadState("OUT_OF_MEMORY", "gpu-1", "", 137), ""),
        ([pod("demo-0-a", "Failed", reason="Evicted")], WorkloadState("NODE_FAIL", "gpu-1", ""), ""),
        ([pod("demo-0-a", "Failed", reason="DeadlineExceeded")], WorkloadState("TIMEOUT", "gpu-1", ""), ""),
        (
            [pod("demo-0-a"), pod("demo-1-a", "Failed", **ended(64))],
            WorkloadState("RUNNING", "gpu-1", ""),
            "demo-1-a has failed",
        ),
        (
            [pod("demo-0-a", "Pending", **waiting("ImagePullBackOff"))],
            WorkloadState("PENDING", "gpu-1", ""),
            "x:1 is not there",
        ),
        (
            [pod("demo-0-a", "Pending", **waiting("ErrImageNeverPull")), pod("demo-1-a")],
            WorkloadState("PENDING", "gpu-1", ""),
            "ErrImageNeverPull",
        ),
        ([pod("demo-0-a")], WorkloadState("PENDING", "gpu-1", ""), "1 of 2 pods are there"),
        ([], WorkloadState("PENDING", "", ""), "no pods yet"),
    ],
)
def test_the_first_pod_says_how_a_job_is_and_each_may_say_why_it_does_not_start(
    pods: list[Manifest], state: WorkloadState, said: str
) -> None:
    found = job_objects.state_of(pods, [], [])
    assert (found.state, found.nodes, found.exit_status) == (state.state, state.nodes, state.exit_status)
    assert said in found.reason


def test_what_time_does_not_heal_is_not_waited_for_and_a_full_cluster_is() -> None:
    never = job_objects.state_of([pod("demo-0-a", "Pending", **waiting("ErrImagePull"))], [], [])
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    busy = job_objects.state_of([pod("demo-0-a", "Pending", conditions=[full])], [], [])
    assert never.patience > 0
    assert (busy.patience, busy.reason) == (0.0, "pod demo-0-a: Unschedulable: 0/3 nodes are available")


def test_a_time_limit_counts_although_its_pods_are_gone() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "longer than specified"}
    jobs = workloads.kubernetes_job(work())[-2:]
    jobs[1]["status"] = {"conditions": [condition]}
    assert job_objects.state_of([], jobs, []).state == "PENDING"
    jobs[0]["status"] = {"conditions": [condition]}
    assert job_objects.state_of([], jobs, []).state == "TIMEOUT"


def test_the_quota_is_reported_in_words() -> None:
    message = (
        'Error creating: pods "demo-0-x" is forbidden: exceeded quota: person, requested: requests.nvidia.com/gpu=8, '
        "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    )
    found = job_objects.state_of([], workloads.kubernetes_job(work())[-2:], [{"message": message}])
    assert "the quota of the user is used up: requests.nvidia.com/gpu=8 is requested" in found.reason


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        ({"requests.nvidia.com/gpu": "8"}, "nvidia.com/gpu 16 in all"),
        ({"requests.nvidia.com/gpu": "16"}, ""),
        ({"requests.memory": "64Gi"}, "memory"),
        ({"requests.memory": "80G"}, ""),
        ({"requests.cpu": "900m"}, "cpu 1 in all"),
        ({"pods": "1"}, "pods 2 in all"),
    ],
)
def test_more_than_a_quota_ever_gives_is_known_before(hard: dict[str, str], said: str) -> None:
    requests = {"nvidia.com/gpu": "8", "memory": "40G", "cpu": "500m"}
    spec = {"containers": [{"resources": {"requests": requests}}]}
    found = job_objects.too_much(spec, 2, [{"spec": {"hard": hard}}])
    assert (said in found) if said else not found


def test_an_image_has_several_names() -> None:
    assert "docker.io/library/x:latest" in job_objects.names_of("x")
    assert job_objects.names_of("registry.test:5000/x:2") == {"registry.test:5000/x:2"}
    assert "docker.io/a/x:1" in job_objects.names_of("a/x:1")


@pytest.mark.parametrize("kind", [*job_objects.WORKLOADS, "NoSuchKind"])
def test_what_makes_pods_is_deleted_first_and_what_it_needs_after_it(kind: str) -> None:
    """The double of kubectl records what it is asked for. Real objects are deleted in jobs/test_kubernetes_queue.py."""
    deleted: list[str] = []

    class Recording(Kubectl):
        def run(self, *words: str, **_more: Any) -> str:
            assert words[0] == "delete"
            deleted.append(words[1])
            return ""

    KubernetesQueue(Recording())._delete("demo", "user-ada", kind)
    makes = job_objects.WORKLOADS.get(kind, "jobs.batch")
    needed = ["trainingruntimes.trainer.kubeflow.org"] if kind == "TrainJob" else []
    assert deleted == [makes, *needed, job_objects.CLAIMS, "services", "configmaps"]
