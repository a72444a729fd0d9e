"""Which elastic nodes of Kubernetes are in service, and at which address."""

from __future__ import annotations

from typing import Any

from gpucluster.controller.users.hosts import of_hostlist


def node(name: str, address: str = "10.0.0.9", ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
        },
    }


def test_ready_nodes_of_the_hostlist_have_their_addresses() -> None:
    nodes = [node("gpu-e1", "10.0.0.1"), node("gpu-e6", "10.0.0.6"), node("cpu-e2", "10.0.0.2")]
    assert of_hostlist(nodes, "gpu-e[1-6],cpu-e[1-2]") == {
        "gpu-e1": "10.0.0.1", "gpu-e6": "10.0.0.6", "cpu-e2": "10.0.0.2"
    }  # fmt: skip
    assert of_hostlist(nodes, "gpu-e1") == {"gpu-e1": "10.0.0.1"}


def test_others_have_none() -> None:
    others = [
        node("gpu-e7"),
        node("gpu-e01"),
        node("gpu-ex"),
        node("gpu-e"),
        node("head"),
        node("gpu-e2", ready="Unknown"),
    ]
    silent = {"metadata": {"name": "gpu-e1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert of_hostlist([*others, silent, {"metadata": {"name": "gpu-e3"}}], "gpu-e[1-6]") == {}


def test_a_node_that_is_not_ready_may_have_processes() -> None:
    nodes = [node("gpu-e1", "10.0.0.1"), node("gpu-e2", "10.0.0.2", ready="Unknown"), node("cpu-e1", ready="False")]
    assert of_hostlist(nodes, "gpu-e[1-6]", ready=False) == {"gpu-e1": "10.0.0.1", "gpu-e2": "10.0.0.2"}
