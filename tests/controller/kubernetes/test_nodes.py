"""Names of hosts and of their nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import hardware, nodes
from gpucluster.controller.kubernetes.drain import NodeDrain
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes import faults, node_name
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed
from gpucluster.node_agent.rules.labels import HOST
from tests.controller.kubernetes.api_server import needs_api_server, running
from tests.controller.kubernetes.objects import node, pod


def _node(name: str, host: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {HOST: host} if host else {}}}


def test_a_node_without_the_label_is_its_own_host() -> None:
    listed = [_node("compute-1"), _node("10.0.1.4", "compute-2")]
    assert list(nodes.by_host(listed)) == ["compute-1", "compute-2"]


def test_a_host_that_two_nodes_claim_to_be_is_none_of_them() -> None:
    listed = [_node("10.0.1.4", "compute-2"), _node("10.0.1.5", "compute-2"), _node("10.0.1.6", "compute-3")]
    assert list(nodes.by_host(listed)) == ["10.0.1.4", "10.0.1.5", "compute-3"]
    # A node that has the name itself is known by it, and not the one that claims it.
    assert list(nodes.by_host([_node("compute-1"), _node("compute-9", "compute-1")])) == ["compute-1", "compute-9"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('KUBELET_KUBEADM_ARGS="--hostname-override=10.0.1.4 --node-ip=10.0.1.4 "', "10.0.1.4"),
        ('KUBELET_KUBEADM_ARGS="--node-ip=10.0.1.4 --hostname-override=10.0.1.4"', "10.0.1.4"),
        ('KUBELET_KUBEADM_ARGS="--node-ip=10.0.1.4"', ""),
        (None, ""),
    ],
)
def test_a_host_reads_the_name_of_its_node_from_kubelets_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str
) -> None:
    file = tmp_path / "kubeadm-flags.env"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(node_name, "_ARGUMENTS", file)
    assert node_name.registered_name() == (name or os.uname().nodename)


@needs_api_server
def test_a_real_api_server_is_asked_by_the_names_of_hosts(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        kubectl = server.kubectl
        first, second = node("10.0.1.4"), node("10.0.1.5")
        first["metadata"]["labels"] = {HOST: "gpu-1"}
        server.create(first, second, pod("work", "10.0.1.4", "Job", restart="Never"))
        assert [each["name"] for each in nodes.list_nodes(kubectl)] == ["10.0.1.5", "gpu-1"]
        # Labels of ours that are not desired any more are removed, but not the one with the name.
        pool = {"nodes": ["gpu-1", "gpu-2"], "labels": {"gpucluster.io/pool": "gpu"}}
        assert hardware.arrange(kubectl, [pool]) == {"changed": ["gpu-1"], "absent": ["gpu-2"]}
        assert hardware.arrange(kubectl, [pool])["changed"] == []
        assert NodeDrain(kubectl, lambda _seconds: None).drain({"gpu-1": "a test"}, 0) == ["gpu-1"]
        (drained,) = [each for each in nodes.list_nodes(kubectl) if each["name"] == "gpu-1"]
        assert (drained["cordoned"], drained["reason"], drained["registered"]) == (True, "a test", "10.0.1.4")
        assert kubectl.list("pods", fields="spec.nodeName=10.0.1.4") == [] or all(
            each["metadata"].get("deletionTimestamp") for each in kubectl.list("pods")
        )
        assert nodes.uncordon(kubectl, "gpu-1") is True
        with pytest.raises(ApiFailed) as missing:
            nodes.find(kubectl, "gpu-2")
        assert missing.value.kind == faults.NOT_FOUND
        kubectl.patch("node", "10.0.1.5", {"metadata": {"labels": {HOST: "gpu-1"}}})
        with pytest.raises(Refused, match=r"10\.0\.1\.4, 10\.0\.1\.5"):
            nodes.find(kubectl, "gpu-1")
        kubectl.patch("node", "10.0.1.5", {"metadata": {"labels": {HOST: None}}})
        nodes.remove(kubectl, "gpu-2")
        nodes.remove(kubectl, "gpu-1")
        assert [each["name"] for each in nodes.list_nodes(kubectl)] == ["10.0.1.5"]
