"""The file of GPU memory fabrics, without a server; the API's tests are in tests/localcloud/api."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.compute import memory_fabrics
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.wire import ApiError

SHAPE = "BM.GPU.GB300.4"
RACK = {"name": "rack", "shape": SHAPE}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudState]:
    cloud = open_cloud(tmp_path, NullEngine(tmp_path / "null"), open_authority(tmp_path))
    yield cloud
    cloud.close()


def fabrics(cloud: CloudState, *entries: Any) -> tuple[memory_fabrics.Fabric, ...]:
    (cloud.home / memory_fabrics.FILE).write_text(json.dumps(entries))
    return memory_fabrics.fabrics(cloud)


def test_a_rack_has_eighteen_hosts_with_ids_that_stay(cloud: CloudState) -> None:
    (rack,) = fabrics(cloud, RACK)
    assert rack.size == rack.healthy == len(rack.hosts) == 18
    (again, other) = fabrics(cloud, {**RACK, "unhealthy": [2]}, {**RACK, "name": "other"})
    assert (again.id, again.hosts) == (rack.id, rack.hosts)
    assert other.id != rack.id
    assert not set(other.hosts) & set(rack.hosts)


def test_a_host_in_repair_is_not_free(cloud: CloudState) -> None:
    (rack,) = fabrics(cloud, {**RACK, "hosts": 3, "unhealthy": [2]})
    free = memory_fabrics.free_hosts(cloud, rack)
    assert [rack.hosts[host.id] for host in free] == [1, 3]
    assert {host.place["memory_fabric"] for host in free} == {"rack"}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "AVAILABLE"),
        ({"hosts": 1, "unhealthy": [1]}, "UNAVAILABLE"),
        *(({"state": state}, state) for state in memory_fabrics.UNUSABLE),
    ],
)
def test_the_state_of_a_fabric(cloud: CloudState, changes: dict[str, Any], state: str) -> None:
    (rack,) = fabrics(cloud, {**RACK, **changes})
    assert memory_fabrics.state_of(cloud, rack) == state


@pytest.mark.parametrize(
    "wrong",
    [
        "rack",
        {"name": "rack"},
        {**RACK, "shape": "BM.GPU4.8"},
        {**RACK, "shape": "BM.GPU.Unknown"},
        {**RACK, "hosts": 2, "unhealthy": [3]},
        {**RACK, "health": "FINE"},
        {**RACK, "state": "OCCUPIED"},
        {**RACK, "availability_domain": "elsewhere"},
        {**RACK, "colour": "green"},
    ],
)
def test_what_the_file_may_not_have(cloud: CloudState, wrong: Any) -> None:
    with pytest.raises(ApiError, match=memory_fabrics.FILE):
        fabrics(cloud, wrong)
