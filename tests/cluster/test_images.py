"""Images of elastic nodes: what is refused before anything begins. Baking is in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import InputError
from gpucluster.spec import load
from tests.spec.sections.test_directory import DIRECTORY, text, written
from tests.spec.spec_texts import MINIMAL


@pytest.mark.parametrize(
    ("pool", "words"), [("gpu", "there is no pool gpu"), ("compute", "are permanent, and need no image")]
)
def test_only_elastic_pools_are_baked(cluster: Cluster, pool: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cluster.images.bake(pool)
    assert not list(cluster.paths.runs.iterdir()), "nothing may have begun"


def test_with_kubernetes_no_image_is_baked(tmp_path: Path) -> None:
    text = f"{MINIMAL.replace('count: 1', 'count: 0, max_count: 2')}scheduler: kubernetes\n"
    (tmp_path / "cluster.yml").write_text(text)
    on_kubernetes = Cluster(load(tmp_path / "cluster.yml"))
    with pytest.raises(InputError, match="nodes of pool compute boot from no baked image: with Kubernetes") as caught:
        on_kubernetes.images.bake("compute")
    assert "elastic nodes need no image" in caught.value.hint
    assert not on_kubernetes.paths.runs.exists(), "nothing may have begun"


def test_with_a_directory_that_exists_no_image_is_baked(tmp_path: Path) -> None:
    """It would hold the password with which hosts bind."""
    written(tmp_path)
    pools = f"{text().partition('pools:')[0]}pools: {{gpu: {{shape: BM.GPU4.8, max_count: 2}}}}\n{DIRECTORY}"
    (tmp_path / "cluster.yml").write_text(pools)
    with pytest.raises(InputError, match="an image would hold the password") as caught:
        Cluster(load(tmp_path / "cluster.yml")).images.bake("gpu")
    assert "elastic nodes need no image" in caught.value.hint
