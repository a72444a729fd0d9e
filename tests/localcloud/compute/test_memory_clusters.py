"""GPU memory clusters when launches fail, and when the server is killed; what they do otherwise is in
tests/localcloud/api."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.api_harness import Api, running
from tests.localcloud.memory_racks import (
    SHAPE,
    compute_cluster,
    configured,
    create,
    delete,
    details,
    ended,
    instances,
    racks,
    resize,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("racks"))) as api:
        yield api


@pytest.fixture(scope="module")
def configuration(api: Api) -> Any:
    return configured(api)


@pytest.fixture
def cluster(api: Api) -> Any:
    return compute_cluster(api)


def test_a_launch_that_fails_leaves_a_smaller_cluster_or_none(api: Api, cluster: Any, configuration: Any) -> None:
    (rack,) = racks(api, {"name": "rack-8"})
    made = create(api, rack, cluster, configuration, 1)
    api.faults({"operation": "BootInstance", "shape": SHAPE, "message": "The host is broken."})
    request = ended(api, resize(api, made, 2), "FAILED")
    (error,) = api.work.list_work_request_errors(request.id).data
    assert "The host is broken." in error.message
    assert api.wait(api.compute.get_compute_gpu_memory_cluster, made.id, "ACTIVE").size == 1
    lost = api.compute.create_compute_gpu_memory_cluster(details(api, rack, compute_cluster(api), configuration, 1))
    ended(api, lost, "FAILED")
    api.wait(api.compute.get_compute_gpu_memory_cluster, lost.data.id, "DELETED")
    api.faults()
    delete(api, made)


def test_a_server_that_was_killed_finishes_what_it_had_begun(api: Api, cluster: Any, configuration: Any) -> None:
    (rack,) = racks(api, {"name": "rack-9"})
    api.faults({"operation": "BootInstance", "shape": SHAPE, "until_removed": True})
    made = api.compute.create_compute_gpu_memory_cluster(details(api, rack, cluster, configuration, 2)).data
    wait_for("the instances are there", lambda: len(instances(api, made)) == 2, interval=0.02)
    api.kill()
    api.faults()
    api.start()
    api.__dict__.pop("compute", None)
    whole = api.wait(api.compute.get_compute_gpu_memory_cluster, made.id, "ACTIVE")
    assert whole.size == len(instances(api, whole)) == 2
    delete(api, whole)
