"""Objects and nodes as they are wanted, against a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tomllib", reason="shapes are read on the operator's machine, which has Python 3.11")

from gpucluster import shapes
from gpucluster.controller.kubernetes.apply import Served, apply, served
from gpucluster.controller.kubernetes.apply_requests import applied
from gpucluster.kubernetes import labels, manifests
from gpucluster.kubernetes.manifests.networks import RdmaAccess
from gpucluster.kubernetes.system import SET, GpuSoftware, system
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from gpucluster.shapes import Shape
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.controller.kubernetes.objects import node

_REAL = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes"), "--allow-privileged=true") as server:
        yield server


_wait = time.sleep


def _config(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}


def _system(shape: Shape, rdma: list[Shape], software: GpuSoftware, access: RdmaAccess) -> list[dict[str, Any]]:
    """The objects of a cluster of 1.20 with nodes of one shape."""
    return system(
        [shape], rdma, minor=20, software=software, access=access, rdma_cidr="192.168.0.0/16", engine=False,
        emulated=False,
    )  # fmt: skip


class TestOnARealServer:
    pytestmark = _REAL

    def test_a_set_is_applied_changed_and_removed_and_nothing_else(self, server: ApiServer) -> None:
        theirs = _config("theirs")
        server.kubectl.run("create", "--filename=-", text=json.dumps(theirs))
        first = apply(server.kubectl, _wait, "people", [_config("a", x="1"), _config("b", x="1")])
        assert first == {
            "changed": ["ConfigMap default/a", "ConfigMap default/b"], "removed": [], "kept": [], "waiting": [],
        }  # fmt: skip
        apply(server.kubectl, _wait, "other", [_config("c", x="1")])
        again = apply(server.kubectl, _wait, "people", [_config("a", x="1"), _config("b", x="1")])
        assert (again["changed"], again["removed"]) == ([], []), "nothing has changed"
        second = apply(server.kubectl, _wait, "people", [_config("a", x="2")])
        assert (second["changed"], second["removed"]) == (["ConfigMap default/a"], ["ConfigMap default/b"])
        left = {each["metadata"]["name"] for each in server.kubectl.list("configmaps", "default")}
        assert {"a", "c", "theirs"} <= left
        assert "b" not in left
        a = server.kubectl.get("configmap", "a", "default")
        assert a["data"] == {"x": "2"}
        assert a["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "gpucluster", "gpucluster.io/set": "people"}

    def test_a_namespace_is_never_removed_and_is_reported(self, server: ApiServer) -> None:
        apply(server.kubectl, _wait, "spaces", [manifests.namespace("user-alice"), manifests.namespace("user-bob")])
        gone = apply(server.kubectl, _wait, "spaces", [manifests.namespace("user-alice")])
        assert (gone["removed"], gone["kept"]) == ([], ["Namespace user-bob"])
        assert server.kubectl.get("namespace", "user-bob")["status"]["phase"] == "Active"

    def test_objects_of_new_kinds_come_after_their_definitions(self, server: ApiServer) -> None:
        """All in one run: an object of a kind that is not served yet would be refused."""
        shape = shapes.get("BM.GPU.H200.8")
        made = _system(shape, [shape], "device-plugin", "device")
        first = apply(server.kubectl, _wait, SET, made)
        assert len(first["changed"]) == len(made)
        assert first["waiting"] == []
        fewer = _system(shape, [], "device-plugin", "host")
        second = apply(server.kubectl, _wait, SET, fewer)
        # It hands out RDMA devices no more.
        assert second["changed"] == ["DaemonSet gpucluster-system/nvidia-device-plugin"]
        assert apply(server.kubectl, _wait, SET, fewer)["changed"] == []
        assert "NetworkAttachmentDefinition gpucluster-system/bm-gpu-h200-8-rdma-7" in second["removed"]
        assert "DaemonSet gpucluster-system/multus" in second["removed"]
        assert "ClusterRole gpucluster-multus" in second["removed"]
        assert all(each.startswith("CustomResourceDefinition ") for each in second["kept"])

    def test_objects_of_an_operator_that_is_not_there_wait(self, server: ApiServer) -> None:
        shape = shapes.get("BM.GPU.H100.8")
        made = _system(shape, [shape], "operator", "sr-iov")
        done = apply(server.kubectl, _wait, "sriov", made)
        assert "SriovNetworkNodePolicy nvidia-network-operator/bm-gpu-h100-8" in done["waiting"]
        assert set(done["changed"]) >= {"Namespace gpucluster-system"}

    def test_what_the_server_refuses_is_reported_with_its_name(self, server: ApiServer) -> None:
        bad = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "bad", "namespace": "default"}}
        with pytest.raises(Failed, match=r"objects of x: .*spec"):
            apply(
                server.kubectl,
                _wait,
                "x",
                [_config("good"), {**bad, "spec": {"selector": {"matchLabels": {"a": "b"}}}}],
            )

    def test_nodes_get_labels_taints_and_emulated_devices(self, server: ApiServer) -> None:
        server.create(node("gpu-1"))
        shape = shapes.get("BM.GPU.MI300X.8")
        server.kubectl.run("taint", "node", "gpu-1", "nvidia.com/gpu=present:NoSchedule", "mine=yes:NoSchedule")
        server.kubectl.run("label", "node", "gpu-1", "gpucluster.io/gpu-type=a100", "theirs=1")
        wanted: dict[str, Any] = {
            "labels": labels.node_labels("amd", shape, elastic=False, zone="x:AD-1", emulated=True),
            "taints": labels.node_taints(shape),
            "emulated": labels.offered_devices(shape, virtual_functions=False),
        }
        given = {"set": "nodes", "manifests": [], "pools": [{"nodes": ["gpu-1", "gpu-9"], **wanted}]}
        assert applied(server.kubectl, _wait, given)["nodes"] == {"changed": ["gpu-1"], "absent": ["gpu-9"]}
        found = server.kubectl.get("node", "gpu-1")
        assert found["metadata"]["labels"] == {"theirs": "1", **wanted["labels"]}
        assert {(each["key"], each["value"]) for each in found["spec"]["taints"]} == {
            ("mine", "yes"), ("amd.com/gpu", "present"),
        }  # fmt: skip
        assert found["status"]["capacity"]["amd.com/gpu"] == found["status"]["allocatable"]["amd.com/gpu"] == "8"
        assert applied(server.kubectl, _wait, given)["nodes"] == {"changed": [], "absent": ["gpu-9"]}


def test_kinds_are_read_with_and_without_short_names() -> None:
    class Printed(Kubectl):
        def run(self, *_words: str, **_more: Any) -> str:
            return (
                "configmaps                         cm        v1            true    ConfigMap\n"
                "daemonsets                         ds        apps/v1       true    DaemonSet\n"
                "network-attachment-definitions     nad,net   k8s.cni.cncf.io/v1 true NetworkAttachmentDefinition\n"
                "roles                                        rbac.authorization.k8s.io/v1   true  Role\n"
            )

    assert served(Printed()) == [
        Served("configmaps", "v1", "ConfigMap"),
        Served("daemonsets.apps", "apps/v1", "DaemonSet"),
        Served("network-attachment-definitions.k8s.cni.cncf.io", "k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
        Served("roles.rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1", "Role"),
    ]


@pytest.mark.parametrize(("minor", "server_side"), [(21, False), (22, True), (37, True)])
def test_the_server_compares_where_its_release_can(minor: int, server_side: bool) -> None:
    """A recorder of what kubectl would be asked: no server of these releases is here."""
    asked: list[tuple[str, ...]] = []

    class Recorded(Kubectl):
        def run(self, *words: str, **_more: Any) -> str:
            asked.append(words)
            return "configmaps  v1  true  ConfigMap\n" if words[0] == "api-resources" else '{"items": []}'

        def minor(self) -> int:
            return minor

    apply(Recorded(), _wait, "x", [_config("a")])
    (sent,) = [words for words in asked if words[0] == "apply"]
    assert ("--server-side" in sent, "--field-manager=gpucluster" in sent) == (server_side, server_side)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("../x", []),
        ("x", {}),
        ("x", ["text"]),
        ("x", [{"kind": "ConfigMap", "metadata": {"name": "a"}}]),
        ("x", [_config("--all")]),
        ("x", [_config("a"), _config("a")]),
    ],
)
def test_what_is_not_a_set_is_refused_before_anything_is_asked(name: str, given: Any, tmp_path: Path) -> None:
    nowhere = Kubectl(str(tmp_path / "none"), str(tmp_path / "no-program"))
    with pytest.raises(Refused):
        apply(nowhere, _wait, name, given)
