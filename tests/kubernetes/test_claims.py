"""Claims of GPUs: what a driver has listed, what a job claims, and what a quota of a user counts of it.

No API server of 1.34 or newer is here: its objects are judged by the schemas of these releases, and what a driver lists
is planted in the form of the API.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.controller.kubernetes.person_objects import Api, KubernetesUser, Quota, objects
from gpucluster.controller.kubernetes.verify_facts import numbers_of_gpus
from tests.kubernetes.schemas import validate, validate_all

QUOTA = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


def listed(node: str, generation: int, *kinds: str, driver: str = "gpu.nvidia.com", name: str = "") -> dict[str, Any]:
    devices = [
        {"name": f"{kind}-{number}", "attributes": {"type": {"string": kind}}} for number, kind in enumerate(kinds)
    ]
    made = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{generation}"},
        "spec": {"driver": driver, "nodeName": node, "devices": devices,
                 "pool": {"name": node, "generation": generation, "resourceSliceCount": 1}},
    }  # fmt: skip
    return made


def test_whole_gpus_of_the_newest_list_of_nvidias_driver_count() -> None:
    slices = [
        listed("gpu-1", 1, *["gpu"] * 8), listed("gpu-1", 2, *["gpu"] * 7, "mig"),
        listed("gpu-2", 4, *["gpu"] * 4), listed("gpu-2", 4, *["gpu"] * 4, name="second"),
        listed("gpu-3", 1, "gpu", driver="gpu.example.com"),
    ]  # fmt: skip
    assert numbers_of_gpus(slices) == {"gpu-1": 7, "gpu-2": 8}
    assert numbers_of_gpus([]) == {}


@pytest.mark.parametrize(("minor", "there"), [(33, False), (34, True), (36, True)])
def test_a_user_has_a_quota_of_devices_where_they_can_be_claimed(minor: int, there: bool) -> None:
    person = KubernetesUser("ada", 10001, (10001,), "/home/ada")
    made = objects([person], Quota(gpus=4), minor, Api(("10.0.0.1",), 6443))
    (quota,) = [each for each in made if each["kind"] == "ResourceQuota" and each["metadata"]["name"] == "person"]
    assert (quota["spec"]["hard"].get(QUOTA) == "4") is there
    validate(quota)
    (role,) = [
        each for each in made if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "gpucluster:person"
    ]
    assert [rule["resources"] for rule in role["rules"] if rule["apiGroups"] == ["resource.k8s.io"]] == [
        ["resourceclaims", "resourceclaimtemplates"]
    ], "and no ResourceSlice or DeviceClass"
    validate_all([role])
