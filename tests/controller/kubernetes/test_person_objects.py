"""The objects of users, by the schemas of the releases that get them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="schemas are for tests on the operator's machine")

from gpucluster.controller.kubernetes.person_objects import Api, KubernetesUser, Quota, objects
from tests.kubernetes.schemas import validate_all

API = Api(("10.0.0.2",), 6443)
QUOTA = Quota(gpus=16, cpus=256, memory_gb=2048, pods=100)
ADA = KubernetesUser("ada", 10001, (10001, 10100), "/home/ada")
ROOT = KubernetesUser("grace", 10002, (10002,), "/home/grace", privileged=True)


def _of(minor: int, *people: KubernetesUser) -> dict[tuple[str, str], dict[str, Any]]:
    made = objects(people or (ADA, ROOT), QUOTA, minor, API)
    return {
        (each["kind"], each["metadata"]["name"]): each
        for each in made
        if each["metadata"].get("namespace") != "user-grace"
    }


@pytest.mark.parametrize(("minor", "newest"), [(20, 24), (23, 24), (25, 29), (30, None)])
def test_every_object_is_valid_in_the_releases_that_get_it(minor: int, newest: int | None) -> None:
    validate_all(objects((ADA, ROOT), QUOTA, minor, API), oldest=minor, newest=newest)


@pytest.mark.parametrize(
    ("minor", "level", "mechanism"),
    [
        (20, None, ("PodSecurityPolicy", "person-user-ada")),
        (24, "baseline", ("PodSecurityPolicy", "person-user-ada")),
        (25, "restricted", None),
        (30, "baseline", ("ValidatingAdmissionPolicy", "gpucluster-own-uid")),
    ],
)
def test_each_release_keeps_root_out_of_the_namespace_in_its_own_way(
    minor: int, level: str | None, mechanism: tuple[str, str] | None
) -> None:
    made = _of(minor)
    assert made["Namespace", "user-ada"]["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") == level
    kinds = {key for key in made if key[0] in ("PodSecurityPolicy", "ValidatingAdmissionPolicy")}
    more = {("ValidatingAdmissionPolicy", f"gpucluster-{name}") for name in ("pods", "services")}
    more |= {("PodSecurityPolicy", "gpucluster-privileged"), ("PodSecurityPolicy", "person-user-grace")}
    assert kinds - more == ({mechanism} if mechanism else set())


def test_who_may_use_the_privileged_policy_may_so_in_their_own_namespace_only() -> None:
    """Controllers of kube-system make the pods of Jobs: a right in the whole cluster would make pods of users root."""
    bound = [each for each in objects((ADA, ROOT), QUOTA, 20, API)
             if each.get("roleRef", {}).get("name") == "gpucluster-privileged"]  # fmt: skip
    assert {each["kind"] for each in bound} == {"RoleBinding"}
    assert {each["metadata"]["namespace"] for each in bound} == {"kube-system", "gpucluster-operators"}


def test_a_disabled_person_has_no_binding_and_no_pods_and_keeps_the_rest() -> None:
    gone = KubernetesUser("ada", 10001, (10001,), "/home/ada", enabled=False, privileged=True)
    made = _of(34, gone)
    assert ("RoleBinding", "person") not in made
    assert made["ResourceQuota", "person"]["spec"]["hard"]["pods"] == "0"
    assert made["ClusterRoleBinding", "gpucluster:readers"]["subjects"] == []
    assert [each["name"] for each in made["ClusterRoleBinding", "gpucluster:operators"]["subjects"]] == [
        "gpucluster:operators"
    ]
    assert {("Namespace", "user-ada"), ("PersistentVolume", "home-user-ada")} <= made.keys()


def test_what_would_open_the_namespace_is_in_no_rule_of_users() -> None:
    rules = _of(34)["ClusterRole", "gpucluster:person"]["rules"]
    writes = {
        resource for rule in rules for resource in rule["resources"] if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert not writes & {"networkpolicies", "endpoints", "resourcequotas", "limitranges", "ingresses", "rolebindings"}
    assert not any("*" in rule["resources"] or "*" in rule["verbs"] or "impersonate" in rule["verbs"] for rule in rules)


def test_the_volume_is_only_the_home_and_only_for_this_namespace() -> None:
    volume = _of(34)["PersistentVolume", "home-user-ada"]["spec"]
    assert volume["hostPath"] == {"path": "/home/ada", "type": "Directory"}
    assert volume["claimRef"] == {"namespace": "user-ada", "name": "home"}


@pytest.mark.parametrize(
    ("name", "namespace"), [("ada", "user-ada"), ("a_b", "user-a-b-7"), ("_x-", "user-x-7"), ("a--b", "user-a--b")]
)
def test_names_that_a_namespace_cannot_have_get_the_uid(name: str, namespace: str) -> None:
    assert KubernetesUser(name, 7, (7,), "/home/x").namespace == namespace
