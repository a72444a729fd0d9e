"""A rack as apply goes about it: it grows, shrinks by name, and gets another host for a named one, and no other.

Resizing, the production root, the stand-in provider and the local cloud's API together; only the instances are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucluster.localcloud.compute import placement
from gpucluster.localcloud.compute.memory_fabrics import FILE
from tests.terraform.test_scaling_root import Cluster, actions, poll_quickly

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = pytest.mark.slow

SHAPE = "BM.GPU.GB300.4"
RACK = 'module.pool["gpu"].oci_core_compute_gpu_memory_cluster.this[0]'


@pytest.fixture
def cluster(
    tmp_path: Path, cloud: LocalCloud, terraform: str, terraform_environment: Mapping[str, str]
) -> Iterator[Cluster]:
    (cloud.home / FILE).write_text(json.dumps([{"name": "rack", "shape": SHAPE, "hosts": 4}]))
    with pytest.MonkeyPatch.context() as patch:
        poll_quickly(patch)
        made = Cluster(tmp_path, cloud, terraform, terraform_environment)
        try:
            yield made
        finally:
            made.destroy()
            (cloud.home / FILE).unlink()


def pool(count: int, more: str = "") -> str:
    return f"shape: {SHAPE}, count: {count}, memory_fabric_id: {placement.ocid('memory_fabric', 'rack')}{more}"


def test_a_rack_is_resized_by_name_and_a_named_node_is_recreated(cluster: Cluster) -> None:
    first = cluster.begin(gpu=pool(2))
    assert sorted(first) == ["gpu-1", "gpu-2"]
    assert cluster.plan(gpu=pool(2)).changes == ()

    assert actions(cluster.apply(cluster.plan(gpu=pool(3)))) == [(RACK, "update")]
    grown = cluster.members()
    assert grown.items() > first.items()

    # The named node goes, and not the last one: it is terminated before Terraform looks, which then has nothing to do.
    fewer = pool(2, ", removed_nodes: [gpu-1]")
    plan = cluster.plan(gpu=fewer)
    assert str(cluster.resizing().scaling(cluster.terraform, plan).pools["gpu"]) == "gpu-1 to remove"
    assert cluster.apply(plan) == ()
    assert cluster.members() == cluster.standing() == {name: grown[name] for name in ("gpu-2", "gpu-3")}
    assert cluster.plan(gpu=fewer).changes == ()

    # Another host for a named node: Terraform asks for the one that is missing.
    assert actions(cluster.apply(cluster.plan(gpu=fewer), recreate=["gpu-2"])) == [(RACK, "update")]
    after = cluster.members()
    assert after["gpu-3"] == grown["gpu-3"]
    assert after["gpu-2"] != grown["gpu-2"]
    assert cluster.plan(gpu=fewer).changes == ()
