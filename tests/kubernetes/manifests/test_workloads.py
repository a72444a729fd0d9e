"""Objects of jobs that claim GPUs."""

from __future__ import annotations

from typing import Any

from gpucluster.controller.kubernetes import job_objects
from gpucluster.kubernetes.manifests import workloads
from tests.kubernetes.test_claims import QUOTA


def work(gpus: int) -> list[dict[str, Any]]:
    made = workloads.Workload("mine", 2, "a/b:1", ("bash",), {}, gpus=gpus, gpu_claim="gpu.nvidia.com")
    return workloads.kubernetes_job(made)


def test_a_job_claims_as_much_as_a_quota_gives_or_is_refused_before_it_waits() -> None:
    quota = {"spec": {"hard": {QUOTA: "16"}}}
    for gpus, refused in ((8, ""), (9, f"it asks for {QUOTA} 18 in all, and the quota of the user is 16")):
        made = work(gpus)
        spec = next(pod for each in made for pod in job_objects.pod_specs(each))
        assert job_objects.too_much(spec, 2, [quota], job_objects.claims(made)) == refused
    assert job_objects.claims(workloads.kubernetes_job(workloads.Workload("a", 1, "b/c:1", (), {}, gpus=8))) == {}


def test_the_objects_of_a_job_that_claims_are_the_users() -> None:
    person = job_objects.Owner("ada", "user-ada", 10001, (10001,), "/home/ada")
    made = job_objects.owned(work(8), "mine", person)
    assert {each["metadata"]["namespace"] for each in made} == {"user-ada"}
    assert "ResourceClaimTemplate" in {each["kind"] for each in made}
