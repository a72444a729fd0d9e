"""Labels, taints and emulated devices of nodes. The API is a double; `test_apply.py` has a real API server."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import hardware
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from gpucluster.node_agent.rules.labels import HOST


@pytest.mark.parametrize(
    "given",
    [
        {},
        [[]],
        [{"nodes": "n"}],
        [{"nodes": ["--all"]}],
        [{"nodes": ["n"], "labels": []}],
        [{"nodes": ["n"], "taints": [{"key": "x"}]}],
        [{"nodes": ["n"], "emulated": {"cpu": "8"}}],
        [{"nodes": ["n"], "emulated": {"nvidia.com/gpu": "-1"}}],
    ],
)
def test_an_object_without_nodes_is_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        hardware.arrange(Kubectl(str(tmp_path / "none"), str(tmp_path / "no-program")), given)


class ApiDouble(Kubectl):
    """Nodes in memory. It does not prove what the API accepts, nor how it merges lists."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        super().__init__("none", "no-program")
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        self.changes: list[str] = []
        self.conflicts = 0

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        return list(self.nodes.values())

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        return copy.deepcopy(self.nodes[name])

    def patch(self, kind: str, name: str, change: Mapping[str, Any], namespace: str = "") -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise ApiFailed(faults.KubectlFault(faults.CONFLICT, "the object has been modified", ""))
        self.changes.append(f"patch {name}")
        labels = self.nodes[name]["metadata"]["labels"]
        for key, value in change["metadata"].get("labels", {}).items():
            if value is None:
                del labels[key]
            else:
                labels[key] = value
        self.nodes[name]["spec"].update(change.get("spec", {}))

    def run(self, *words: str, text: str = "", seconds: float = 0.0, where: str = "") -> str:
        self.changes.append(" ".join(words[:2]))
        self.nodes[where.split()[1]] = json.loads(text)
        return ""


def bare(name: str, labels: dict[str, str] | None = None, *taints: dict[str, str]) -> dict[str, Any]:
    meta = {"name": name, "labels": labels or {}, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"taints": list(taints)}, "status": {"capacity": {"cpu": "8"}}}


OURS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
THEIRS = {"key": "nvidia.com/gpu", "value": "theirs", "effect": "NoExecute"}


def test_labels_and_taints_of_a_pool_are_set_once() -> None:
    api = ApiDouble(bare("gpu-1", {"kept": "x", "gpucluster.io/pool": "old", "gpucluster.io/gone": "y"}, THEIRS))
    pools = [{"nodes": ["gpu-1", "gpu-2"], "labels": {"gpucluster.io/pool": "gpu"}, "taints": [OURS]}]
    assert hardware.arrange(api, pools) == {"changed": ["gpu-1"], "absent": ["gpu-2"]}
    assert api.nodes["gpu-1"]["metadata"]["labels"] == {"kept": "x", "gpucluster.io/pool": "gpu"}
    assert api.nodes["gpu-1"]["spec"]["taints"] == [THEIRS, OURS]
    assert hardware.arrange(api, pools) == {"changed": [], "absent": ["gpu-2"]}
    assert api.changes == ["patch gpu-1"]


def test_a_taint_that_the_pool_no_longer_has_is_removed_and_those_of_others_stay() -> None:
    api = ApiDouble(bare("gpu-1", {HOST: "gpu-1"}, OURS, THEIRS))
    assert hardware.arrange(api, [{"nodes": ["gpu-1"]}])["changed"] == ["gpu-1"]
    assert api.nodes["gpu-1"]["spec"]["taints"] == [THEIRS]
    # It names the host of a node of Kubernetes Engine, and is not the pool's.
    assert api.nodes["gpu-1"]["metadata"]["labels"] == {HOST: "gpu-1"}


def test_emulated_devices_are_offered_and_the_node_says_so() -> None:
    api = ApiDouble(bare("gpu-1"))
    pools = [{"nodes": ["gpu-1"], "emulated": {"nvidia.com/gpu": 8}}]
    assert hardware.arrange(api, pools)["changed"] == ["gpu-1"]
    node = api.nodes["gpu-1"]
    assert node["metadata"]["labels"] == {hardware.EMULATED: "true"}
    assert node["status"] == {"capacity": {"cpu": "8", "nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
    # kubelet forgets them when it starts.
    del node["status"]["allocatable"]
    assert hardware.arrange(api, pools)["changed"] == ["gpu-1"]
    assert hardware.arrange(api, pools)["changed"] == []


def test_a_node_that_others_change_at_the_same_time_is_tried_again() -> None:
    api = ApiDouble(bare("gpu-1"))
    api.conflicts = 4
    assert hardware.arrange(api, [{"nodes": ["gpu-1"], "labels": {"a": "b"}}])["changed"] == ["gpu-1"]
    api.conflicts = 5
    with pytest.raises(ApiFailed, match="has been modified"):
        hardware.arrange(api, [{"nodes": ["gpu-1"], "labels": {"a": "c"}}])


def test_without_nodes_nothing_is_asked(tmp_path: Path) -> None:
    nothing = Kubectl(str(tmp_path / "none"), str(tmp_path / "no-program"))
    assert hardware.arrange(nothing, []) == {"changed": [], "absent": []}
