"""The volume and the address of a controller move from one instance to another: the real SDK, and the API of a local
cloud that launches nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.power import InstancePower
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.errors import CloudError
from gpucluster.events import Event
from tests.localcloud.api_harness import Api, running

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("move"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def move(api: Api, events: list[Event]) -> ServiceMove:
    return ServiceMove(CloudAccess(api.config, api.endpoint, api.tenancy), "pair", events.append, tags={"role": "x"})


@pytest.fixture
def power(api: Api) -> InstancePower:
    return InstancePower(CloudAccess(api.config, api.endpoint, api.tenancy), lambda _event: None)


@pytest.fixture
def hosts(api: Api, subnet: Any) -> tuple[str, str]:
    number = next(_NUMBERS)  # a host name is in use once in a subnet
    return str(api.launch(subnet, f"one-{number}").id), str(api.launch(subnet, f"two-{number}").id)


@pytest.fixture
def volume(api: Api) -> str:
    details = models.CreateVolumeDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, size_in_gbs=50, display_name="pair-state"
    )
    return str(api.block.create_volume(details).data.id)


def test_the_volume_goes_to_one_host_and_back_and_is_never_taken_from_one_that_runs(
    move: ServiceMove, power: InstancePower, hosts: tuple[str, str], volume: str, events: list[Event]
) -> None:
    one, two = hosts
    assert move.holder(volume) == ""
    move.give_volume(volume, one)
    move.give_volume(volume, one)
    assert move.holder(volume) == one
    with pytest.raises(CloudError, match="which is RUNNING: it is not taken away"):
        move.give_volume(volume, two)
    assert move.holder(volume) == one
    power.stop(one, "pair-controller", at_once=True)
    move.give_volume(volume, two)
    assert move.holder(volume) == two
    assert [event.status for event in events] == ["attaching", "detaching", "attaching"]
    assert power.start(one, "pair-controller")
    power.stop(two, "pair-standby", at_once=True)
    move.give_volume(volume, one)
    assert move.holder(volume) == one


def test_a_volume_whose_host_is_gone_goes_to_the_other(
    api: Api, move: ServiceMove, power: InstancePower, hosts: tuple[str, str], volume: str
) -> None:
    one, two = hosts
    move.give_volume(volume, one)
    api.compute.terminate_instance(one)
    api.wait(api.compute.get_instance, one, "TERMINATED")
    move.give_volume(volume, two)
    assert move.holder(volume) == two
    assert not power.start(one, "pair-controller")


def test_the_address_moves_and_is_the_same_after_its_host_is_gone(
    api: Api, move: ServiceMove, hosts: tuple[str, str], subnet: Any
) -> None:
    one, two = hosts
    address = move.give_address("", one)
    assert move.give_address("", one) == address  # a run that was killed before it wrote the address down
    assert move.give_address(address, two) == address
    (found,) = api.network.list_private_ips(subnet_id=subnet.id, ip_address=address).data
    assert (found.display_name, found.is_primary, found.freeform_tags) == ("pair-service", False, {"role": "x"})
    api.compute.terminate_instance(two)
    api.wait(api.compute.get_instance, two, "TERMINATED")
    assert move.give_address(address, one) == address
    api.compute.terminate_instance(one)
    api.wait(api.compute.get_instance, one, "TERMINATED")
    with pytest.raises(CloudError, match="no network interface"):
        move.give_address(address, one)
