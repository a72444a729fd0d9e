"""What a user adds to the pods of a job, and what is refused."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.jobs import registry
from tests.jobs.launchers.test_kubernetes import _NAMES, _OLDEST, objects, pod_annotations, pods
from tests.kubernetes.schemas import validate_all


@pytest.mark.parametrize("launcher", _NAMES)
def test_what_a_user_adds_to_the_pods_is_in_each_of_them(launcher: str) -> None:
    template = next(each for each in registry.templates() if launcher in each.launchers)
    found = objects(
        template.name, launcher, 2, "BM.GPU4.8",
        tolerations="lab.example/reserved=ada:NoSchedule,spot", priority="high",
        annotations="example.com/note='two words'", shm_gb="64", mounts="models:/models,/raid:/scratch",
        env="A='b c' EMPTY=", env_secret="tokens",
    )  # fmt: skip
    validate_all(found, oldest=_OLDEST.get(launcher, 20))
    assert pod_annotations(found) == {"example.com/note": "two words"}
    for pod in pods(found):
        assert pod["priorityClassName"] == "high"
        assert {"key": "lab.example/reserved", "operator": "Equal", "value": "ada", "effect": "NoSchedule"} in (
            pod["tolerations"]
        )
        assert {"key": "spot", "operator": "Exists"} in pod["tolerations"]
        assert any(each["key"] == "nvidia.com/gpu" for each in pod["tolerations"])
        assert {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64G"}} in pod["volumes"]
        (container,) = pod["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert (given["A"], given["EMPTY"]) == ("b c", "")
        assert container["envFrom"] == [{"secretRef": {"name": "tokens"}}]
        paths = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        sources = {each["name"]: each for each in pod["volumes"]}
        assert sources[paths["/models"]]["persistentVolumeClaim"] == {"claimName": "models"}
        assert sources[paths["/scratch"]]["hostPath"]["path"] == "/raid"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("env", "NCCL_DEBUG"), ("env", "1A=b"), ("env", "A=1 A=2"), ("env", "A='b"), ("env", "HOME=/x"),
        ("env", "GPUCLUSTER_NODES=x"), ("env", "=b"),
        ("mounts", "models"), ("mounts", "models:relative"), ("mounts", "Models:/x"), ("mounts", "a:/b:ro"),
        ("tolerations", "a=b=c"), ("tolerations", "key:Never"), ("tolerations", "a b"), ("tolerations", "=x"),
        ("tolerations", ":NoSchedule"),
        ("annotations", "a b"), ("annotations", "-x=1"), ("annotations", "a=1 a=2"), ("priority", "High Class"),
    ],
)  # fmt: skip
def test_what_is_not_an_addition_to_a_pod_is_refused_with_its_option(option: str, value: str) -> None:
    with pytest.raises(InputError, match=option):
        objects("pytorch_ddp", "kubernetes-job", 2, synthetic="1", **{option: value})
