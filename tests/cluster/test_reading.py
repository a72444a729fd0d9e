"""Reading a cluster before the first apply: an answer, and nothing is started. tests/e2e has those of a live one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import ToolError
from gpucluster.spec import load
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Without an earlier run, and with a local cloud that nobody has used."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return Cluster(load(tmp_path / "cluster.yml"))


def test_nothing_exists_and_nothing_is_started(fresh: Cluster, tmp_path: Path) -> None:
    assert fresh.clusters() == ()
    assert fresh.contents().empty
    assert fresh.contents().name == "demo"
    assert fresh.status().to_dict()["hosts"] == []
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("question", ["drift", "exposure", "overview"])
def test_what_needs_a_cluster_says_so(fresh: Cluster, question: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"gpucluster apply|no cluster|nothing is known"):
        getattr(fresh, question)()
    assert not (tmp_path / "home").exists()


def test_a_bundle_needs_no_cluster(fresh: Cluster, tmp_path: Path) -> None:
    fresh.support_bundle(tmp_path / "bundle.tar.gz", since_h=1, timeout=PATIENCE_S)
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert any(name.endswith("cluster.yml") for name in archive.getnames())
    assert (tmp_path / "bundle.tar.gz").stat().st_mode & 0o777 == 0o600
