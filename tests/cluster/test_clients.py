"""The clients of a cluster are made for each use: the local cloud answers only after a run has started it."""

from __future__ import annotations

import pytest

from gpucluster.cluster import Cluster
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import leftovers


def test_ssh_takes_the_key_of_the_moment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = cluster._parts.programs
    first = programs.ssh()
    assert programs.ssh() is not first
    assert first.config == ClusterPaths.of(cluster.spec.file).ssh / "config"


def test_programs_of_a_run_are_known_by_their_environment(cluster: Cluster) -> None:
    programs = cluster._parts.programs
    marked = {leftovers.VARIABLE: str(cluster.paths.root)}
    assert marked.items() <= programs.ansible()._env.items()
    assert {**marked, "TF_LOG": "off"}.items() <= programs.terraform({"TF_LOG": "off"})._env.items()


def test_a_cloud_that_is_not_used_has_no_resources(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(cluster._parts.cloud), "in_use", lambda _: False)
    monkeypatch.setattr(type(cluster._parts.cloud), "start_if_used", lambda _: pytest.fail("it was started"))
    assert cluster._parts.clients.tagged() == ()
    assert cluster.clusters() == ()
    assert cluster.contents().empty
