"""Another release of Slurm than that of cluster.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.operations.slurm_upgrade import SlurmReleases
from gpucluster.slurm.releases import BUILDABLE
from gpucluster.spec import load
from tests.spec.spec_texts import MINIMAL


def test_the_release_of_a_plan_is_the_named_one_or_that_of_the_file(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases: list[str | None] = []
    monkeypatch.setattr(SlurmReleases, "plan", lambda of: releases.append(of._spec.slurm.release))
    for release in (None, cluster.spec.slurm.release, BUILDABLE[0]):
        cluster.slurm.plan_upgrade(release)
    assert releases == [cluster.spec.slurm.release, cluster.spec.slurm.release, BUILDABLE[0]]


def test_a_cluster_without_slurm_has_no_other_release(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\n")
    cluster = Cluster(load(tmp_path / "cluster.yml"))
    assert cluster.slurm._at(BUILDABLE[0]) is cluster._parts
