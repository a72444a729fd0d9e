"""Faults that hold an operation until they are removed from the file, as the real SDK sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("held") / "cloud") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    yield shared
    shared.faults()


@pytest.fixture(scope="module")
def subnet(shared: Api) -> Any:
    return shared.subnet(shared.vcn())


def state(api: Api, ocid: str) -> str:
    return str(api.compute.get_instance(ocid).data.lifecycle_state)


def launch(api: Api, subnet: Any, name: str) -> str:
    return str(api.compute.launch_instance(api.launch_details(subnet, name)).data.id)


def test_a_boot_and_a_termination_go_on_when_the_fault_is_removed(api: Api, subnet: Any) -> None:
    held = {"display_name": "held", "until_removed": True}
    api.faults({**held, "operation": "BootInstance"}, {**held, "operation": "EndInstance"})
    first, second = launch(api, subnet, "held"), launch(api, subnet, "free")
    wait_for("the other instance runs", lambda: state(api, second) == "RUNNING")
    assert state(api, first) == "PROVISIONING"
    api.faults({**held, "operation": "EndInstance"})
    wait_for("the first instance runs", lambda: state(api, first) == "RUNNING")
    for ocid in (first, second):
        api.compute.terminate_instance(ocid)
    wait_for("the other instance is gone", lambda: state(api, second) == "TERMINATED")
    assert state(api, first) == "TERMINATING"
    api.faults()
    wait_for("the first instance is gone", lambda: state(api, first) == "TERMINATED")


def test_a_boot_is_still_held_after_a_restart_and_while_the_file_is_damaged(api: Api, subnet: Any) -> None:
    api.faults({"operation": "BootInstance", "display_name": "held-again", "until_removed": True})
    first = launch(api, subnet, "held-again")
    api.kill()
    api.start()
    faults = api.home / "faults.json"
    kept = faults.read_text()
    faults.write_text("[")
    faults.write_text(kept)
    second = launch(api, subnet, "free-again")
    wait_for("the other instance runs", lambda: state(api, second) == "RUNNING")
    assert state(api, first) == "PROVISIONING"
    api.faults()
    wait_for("the first instance runs", lambda: state(api, first) == "RUNNING")


def test_a_request_is_answered_when_the_fault_is_removed(api: Api) -> None:
    api.faults({"operation": "ListVcns", "until_removed": True})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.network.list_vcns, api.tenancy)
        # Other requests are answered in the meantime.
        for _ in range(20):
            api.network.list_subnets(api.tenancy)
        assert not asked.done()
        api.faults()
        assert asked.result().status == 200
