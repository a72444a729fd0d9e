"""Operations on the shared state: a request that is sent again is carried out once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from oci.core import models

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


# retry tokens


def test_a_retry_token_makes_one_thing(shared: Api) -> None:
    details = models.CreateVcnDetails(compartment_id=shared.tenancy, cidr_blocks=["10.60.0.0/16"])
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: shared.client("core.VirtualNetworkClient").create_vcn(
            details, opc_retry_token="one").data.id, range(4)))  # fmt: skip
    assert len(set(made)) == 1
    other = models.CreateVcnDetails(compartment_id=shared.tenancy, cidr_blocks=["10.61.0.0/16"])
    with refused(409, "InvalidatedRetryToken"):
        shared.network.create_vcn(other, opc_retry_token="one")
    shared.network.delete_vcn(made[0])
    with refused(409, "InvalidatedRetryToken"):
        shared.network.create_vcn(details, opc_retry_token="one")


def test_a_retried_launch_has_the_same_work_request(shared: Api) -> None:
    details = shared.launch_details(shared.subnet(shared.vcn("10.62.0.0/16"), "10.62.0.0/24"), "once")
    first = shared.compute.launch_instance(details, opc_retry_token="launch")
    second = shared.compute.launch_instance(details, opc_retry_token="launch")
    assert first.data.id == second.data.id
    assert first.headers["opc-work-request-id"] == second.headers["opc-work-request-id"]
    assert len(shared.compute.list_instances(shared.tenancy, display_name="once").data) == 1


def test_a_job_that_comes_while_the_server_ends_is_left_to_its_next_start(tmp_path: Path) -> None:
    cloud = open_cloud(tmp_path, NullEngine(tmp_path / "null"), open_authority(tmp_path))
    ran: list[str] = []
    cloud._timers.stop()  # as `CloudState.close` does, which then ends what it knows of
    ended = cloud.coordinate("pool", lambda: wait([cloud.submit("late", lambda: ran.append("late"), delay=0.1)]))
    wait_for("nobody waits for it", ended.done)
    cloud.close()
    assert ran == []
