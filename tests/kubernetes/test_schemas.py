"""The judge of manifests refuses what an API server would refuse, or would drop without a word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster.controller.kubernetes.person_objects import Api, KubernetesUser, Quota, objects
from gpucluster.kubernetes import manifests
from gpucluster.spec.sections.kubernetes import NEWEST_RELEASE
from tests.kubernetes import schemas
from tests.kubernetes.admission import refusals
from tests.kubernetes.custom_resources import SCHEMAS
from tests.kubernetes.schemas import Invalid, validate, validate_all


def _pod(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": manifests.metadata("p", "default"),
        "spec": {"containers": [{"name": "c", "image": "example.org/a:1"}], **spec},
    }


def test_the_package_has_the_newest_release_that_we_build() -> None:
    """Else its description of the newest release would prove nothing about ours."""
    assert int(NEWEST_RELEASE.split(".")[1]) in schemas.releases()
    assert schemas.releases()[0] == 25


_MOVED = {"type": "host-device", "pciBusID": "0000:0c:00.0"}


def _attachment(*plugins: dict[str, Any], **about: Any) -> dict[str, Any]:
    config = {"cniVersion": "0.3.1", "name": "n", "plugins": list(plugins)}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "n", **about},
        "spec": {"config": json.dumps(config)},
    }


def test_a_device_of_a_device_plugin_needs_no_place() -> None:
    given = {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rdma-vf"}
    validate(_attachment({"type": "host-device"}, {"type": "rdma"}, annotations=given))


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (_pod(hostnetwork=True), "hostnetwork"),
        (_pod(containers=[]) | {"spec": {"hostNetwork": True}}, "'containers' is a required property"),
        (_pod(hostNetwork="yes"), "spec.hostNetwork"),
        (_pod(schedulingGates=[{"name": "x"}]), "1.20 drops spec.schedulingGates"),
        ({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}}, "1.20 does not serve"),
        ({"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy", "metadata": {"name": "p"}}, "from 1.25 on"),
        ({"apiVersion": "apps/v1beta1", "kind": "DaemonSet", "metadata": {"name": "d"}}, "no schema for apps/v1beta1"),
        ({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t"}}, "with its source"),
        (
            {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "n"},
             "spec": {"config": {"type": "host-device"}}}, "spec.config",
        ),
        (_attachment({"type": "host-device"}), "pciBusID"),
        (_attachment(_MOVED, {"type": "rdma"}), "no deviceID"),
        (_attachment({"type": "rdma", "deviceID": "0000:0c:00.0"}), "follows another plugin"),
        (_attachment(_MOVED, {"type": "sbr"}, {"type": "vrf"}), "nothing is known of the plugin vrf"),
        (_attachment(_MOVED, {"type": "tuning", "sysctl": {"kernel.shmmax": "1"}}), "no setting of the network"),
        (_attachment({**_MOVED, "ipam": {"type": "whereabouts"}}), "needs a range"),
        (_attachment({**_MOVED, "ipam": {"type": "whereabouts", "range": "10.0.0"}}), "invalid CIDR"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_wrong_is_refused(manifest: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says.replace("(", r"\(")):
        validate(manifest)


def test_the_pods_in_a_custom_resource_are_judged_as_well() -> None:
    job: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": manifests.metadata("j", "default"),
        "spec": {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": {"spec": _pod()["spec"]}}}},
    }
    validate(job)
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["hostnetwork"] = True
    with pytest.raises(Invalid, match="hostnetwork"):
        validate(job)


def test_every_schema_of_ours_refuses_an_unknown_field() -> None:
    for api_version, kind in SCHEMAS:
        manifest = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {"surely_unknown": 1}}
        with pytest.raises(Invalid, match=r"surely_unknown|required"):
            validate(manifest, newest=24)


def test_two_objects_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="twice"):
        validate_all([_pod(), _pod()])
    with pytest.raises(Invalid, match="no manifest"):
        validate_all([])


_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_PAGES = sorted(Path(__file__).parents[2].joinpath("docs").rglob("*.md"))


def _objects_in_pages() -> list[tuple[Path, dict[str, Any]]]:
    """Whole objects only: a part of one is not an object."""
    return [
        (page, each)
        for page in _PAGES
        for block in _BLOCK.findall(page.read_text())
        for each in yaml.safe_load_all(block)
        if isinstance(each, dict) and {"apiVersion", "kind"} <= set(each)
    ]


def test_objects_in_pages_are_valid() -> None:
    found = _objects_in_pages()
    assert {page.name for page, _each in found} >= {"kubernetes.md"}
    for page, each in found:
        try:
            validate(each, oldest=max(schemas.releases()[0], schemas.served_since(each)))
        except Invalid as error:
            raise AssertionError(f"{page}: {error}") from error


def test_pods_of_users_in_pages_are_accepted_by_the_policies_of_their_namespace() -> None:
    made = objects((KubernetesUser("alice", 10001, (9999,), "/home/alice"),), Quota(), 36, Api((), 6443))
    (place,) = (each for each in made if each["kind"] == "Namespace" and each["metadata"]["name"] == "user-alice")
    policies = [each for each in made if each["kind"] == "ValidatingAdmissionPolicy"]
    pods = [
        (page, each)
        for page, each in _objects_in_pages()
        if each["kind"] == "Pod" and each["metadata"].get("namespace") == "user-alice"
    ]
    assert pods
    for page, pod in pods:
        assert refusals(policies, place, pod) == [], page
