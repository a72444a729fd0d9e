"""What `verify` reports of pods on the nodes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Finding, evaluate
from gpucluster.verdict.kubernetes_pods import CHECKS
from tests.verdict.samples import KUBERNETES, pods_of_verify

NETWORK, RDMA = CHECKS


def _judged(check: Any, change: Callable[[dict[str, Any]], Any], *, emulated: bool = False) -> Finding:
    seen = copy.deepcopy(pods_of_verify())
    change(seen)
    cluster = dataclasses.replace(KUBERNETES, hardware_emulated=emulated)
    return evaluate(check, "compute-1", {"kubernetes_pods": seen}, cluster)


def _node(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda seen: seen["nodes"]["compute-1"].update(changed)


@pytest.mark.parametrize(
    ("check", "change", "emulated", "status", "says"),
    [
        (NETWORK, _node(), False, "pass", "reaches compute-2 by eth0"),
        (NETWORK, lambda seen: seen["pairs"][0].update(error="timed out"), False, "fail",
         "compute-1 does not reach compute-2 by eth0 (10.244.1.2): timed out"),
        (NETWORK, lambda seen: seen["pairs"].clear(), False, "skip", "not judged, because no other node"),
        (NETWORK, _node(state="not judged", why="it is cordoned"), False, "skip", "not judged, because it is cordoned"),
        (NETWORK, _node(state="failed", why="no image"), False, "fail", "no image"),
        (NETWORK, lambda seen: seen["nodes"].clear(), False, "skip", "it got no pod"),
        (RDMA, _node(), False, "pass", "2 of 2 devices, 2 files"),
        (RDMA, _node(rdma=["mlx5_0"]), False, "fail", "1 of 2 devices"),
        (RDMA, _node(verbs=[]), False, "fail", "0 files"),
        (RDMA, _node(rdma_missing=["a/b"]), False, "fail", "no network a/b"),
        (RDMA, _node(rdma_missing=["a/b"]), True, "skip", "emulated: no network a/b"),
        (RDMA, _node(rdma=[], interfaces={"eth0": "1", "net1": "2"}), True, "skip", "emulated: a pod gets net1"),
        (RDMA, _node(rdma_taken="the pod x/y has the devices"), False, "skip", "not judged, because the pod x/y"),
    ],
)  # fmt: skip
def test_each_state_is_reported(check: Any, change: Any, emulated: bool, status: str, says: str) -> None:
    found = _judged(check, change, emulated=emulated)
    assert (found.status.value, says in found.message) == (status, True), found
