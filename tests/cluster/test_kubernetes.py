"""Kubernetes: who has none is told so before anything is asked; Oracle's control plane is not ours to look after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.cluster import Cluster
from gpucluster.cluster.kubernetes import KubernetesOperations
from gpucluster.errors import InputError
from gpucluster.spec import load
from tests.spec.spec_texts import MINIMAL

_ASK: tuple[Callable[[KubernetesOperations], Any], ...] = (
    lambda kubernetes: kubernetes.state(),
    lambda kubernetes: kubernetes.certificates(),
    lambda kubernetes: kubernetes.renew_certificates(30),
    lambda kubernetes: kubernetes.compact_etcd(),
    lambda kubernetes: kubernetes.plan_upgrade(),
    lambda kubernetes: kubernetes.upgrade("1.34.2"),
)
_ANY: tuple[Callable[[KubernetesOperations], Any], ...] = (
    lambda kubernetes: kubernetes.nodes(),
    lambda kubernetes: kubernetes.write_kubeconfig(),
    lambda kubernetes: kubernetes.kubectl_argv(["get", "nodes"]),
)


@pytest.mark.parametrize("ask", [*_ASK, *_ANY])
def test_a_cluster_without_kubernetes_refuses(cluster: Cluster, ask: Callable[[KubernetesOperations], Any]) -> None:
    with pytest.raises(InputError, match="this cluster has no control plane of Kubernetes"):
        ask(cluster.kubernetes)


@pytest.mark.parametrize("ask", _ASK)
def test_the_control_plane_of_oracle_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ask: Callable[[KubernetesOperations], Any]
) -> None:
    section = cluster.spec.kubernetes.model_copy(update={"control_plane": "oke"})
    spec = cluster.spec.model_copy(update={"scheduler": "kubernetes", "kubernetes": section})
    with pytest.raises(InputError, match="Oracle runs the control plane"):
        ask(Cluster(spec).kubernetes)


def test_kubectl_runs_on_the_controller_with_a_terminal_where_one_is_asked_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\n")
    kubernetes = Cluster(load(tmp_path / "cluster.yml")).kubernetes
    plain, terminal = (kubernetes.kubectl_argv(["get", "nodes"], terminal=each) for each in (False, True))
    assert plain[-1] == terminal[-1]
    assert plain[-1].endswith("get nodes")
    assert ("-t" in plain, "-t" in terminal) == (False, True)
