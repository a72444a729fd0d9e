"""Service limits and quotas: how launches count, what exceeds them, and the file that sets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.localcloud.api.test_limits import OTHER_DOMAIN, allow, available
from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("limits")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(autouse=True)
def _large_again(api: Api) -> Iterator[None]:
    yield
    allow(api)
    api.faults()
    for instance in api.compute.list_instances(api.tenancy).data:
        if instance.lifecycle_state == "RUNNING":
            api.compute.terminate_instance(instance.id)
            api.wait(api.compute.get_instance, instance.id, "TERMINATED")


def test_a_launch_beyond_a_limit_is_refused_in_ocis_words(api: Api, subnet: Any) -> None:
    allow(api, {"standard-e5-core-count": 1, "standard-e5-memory-count": 4})
    api.launch(subnet, "first")
    with refused(400, "LimitExceeded") as said:
        api.launch(subnet, "second")
    assert said == [
        "The following service limits were exceeded: standard-e5-core-count, standard-e5-memory-count."
        " Request a service limit increase from the service limits page in the console."
    ]
    api.launch(subnet, "elsewhere", availability_domain=OTHER_DOMAIN)


def test_a_quota_is_told_apart_from_a_limit(api: Api, subnet: Any) -> None:
    assert api.quotas.list_quotas(api.tenancy).data == []
    allow(api, quotas={"gpu4-count": 8})
    (quota,) = api.quotas.list_quotas(api.tenancy).data
    assert api.quotas.get_quota(quota.id).data.statements == ["Set compute quota gpu4-count to 8 in tenancy"]
    api.launch(subnet, "first", shape=GPU_SHAPE, shape_config=None)
    free = available(api, "gpu4-count", api.domain)
    assert (free.available, free.effective_quota_value) == (0, 8)
    with refused(400, "QuotaExceeded") as said:
        api.launch(subnet, "second", shape=GPU_SHAPE, shape_config=None)
    assert "gpu4-count" in said[0]


def test_a_pool_that_meets_a_limit_reports_it(api: Api, subnet: Any) -> None:
    allow(api, {"gpu4-count": 8})
    network = api.cluster_network(api.configuration(), subnet, 2)
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    requests = api.work.list_work_requests(api.tenancy, resource_id=network.id).data
    errors = [error.message for request in requests for error in api.work.list_work_request_errors(request.id).data]
    assert any("service limits were exceeded: gpu4-count" in error for error in errors)


@pytest.mark.parametrize(
    "text",
    [
        '{"limits": {"no-such-count": 1}}',
        '{"limits": {"gpu4-count": "many"}}',
        '{"limits": {"gpu4-count": {"no-such-domain": 1}}}',
        '{"quota": {}}',
        "[]",
        "{",
    ],
)
def test_a_file_that_is_not_understood_is_not_ignored(api: Api, text: str) -> None:
    (api.home / "limits.json").write_text(text)
    with refused(500, "InternalError") as said:
        api.limits.list_limit_values(api.tenancy, "compute")
    assert str(api.home / "limits.json") in said[0]
