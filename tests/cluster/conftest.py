"""A cluster as a library's user has it, whose hosts an earlier run has saved. Nothing is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.spec import load
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_controller


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """With a fixed pool `compute` and an elastic one, `cpu`."""
    save_controller(tmp_path, "demo-controller")
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return Cluster(load(tmp_path / "cluster.yml"))
