"""Block volumes and attachments with the real SDK; what an instance sees of one is in test_api_containers.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.localcloud.engine import volumes
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for

DEVICE = "/dev/oracleoci/oraclevdb"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("volumes"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


def volume(api: Api, domain: str = "", **values: Any) -> Any:
    details = models.CreateVolumeDetails(
        compartment_id=api.tenancy, availability_domain=domain or api.domain, **{"size_in_gbs": 50, **values}
    )
    return api.block.create_volume(details).data


def attach(api: Api, instance: Any, made: Any, **values: Any) -> Any:
    details = models.AttachParavirtualizedVolumeDetails(
        instance_id=instance.id, volume_id=made.id, **{"device": DEVICE, **values}
    )
    return api.compute.attach_volume(details).data


def attached(api: Api, attachment: Any, state: str = "ATTACHED") -> Any:
    return wait_for(
        f"the attachment is {state}",
        lambda: (found := api.compute.get_volume_attachment(attachment.id).data).lifecycle_state == state and found,
    )


def test_a_volume_is_a_sparse_file_that_only_grows(api: Api) -> None:
    made = volume(api, display_name="state")
    assert (made.lifecycle_state, made.size_in_gbs, made.size_in_mbs, made.vpus_per_gb) == ("AVAILABLE", 50, 51200, 10)
    file = api.home / "volumes" / made.id[-12:]
    assert (file.stat().st_size, file.stat().st_blocks, file.stat().st_mode & 0o777) == (50 << 30, 0, 0o600)
    larger = api.block.update_volume(made.id, models.UpdateVolumeDetails(size_in_gbs=60)).data
    assert (larger.size_in_gbs, file.stat().st_size) == (60, 60 << 30)
    with refused(400, "InvalidParameter"):
        api.block.update_volume(made.id, models.UpdateVolumeDetails(size_in_gbs=50))
    with refused(400, "InvalidParameter"):
        volume(api, size_in_gbs=49)
    api.block.delete_volume(made.id)
    assert not file.exists()
    assert api.block.get_volume(made.id).data.lifecycle_state == "TERMINATED"


def test_a_volume_is_on_one_instance_at_a_time_and_survives_it(api: Api, subnet: Any) -> None:
    first, second, made = api.launch(subnet, "first"), api.launch(subnet, "second"), volume(api)
    held = attached(api, attach(api, first, made))
    assert (held.device, held.attachment_type, held.instance_id) == (DEVICE, "paravirtualized", first.id)
    with refused(409, "Conflict"):
        attach(api, second, made)
    with refused(409, "Conflict"):
        api.block.delete_volume(made.id)
    other = volume(api)
    with refused(400, "InvalidParameter"):  # the device is taken
        attach(api, first, other)

    api.compute.terminate_instance(first.id)
    attached(api, held, "DETACHED")
    assert api.block.get_volume(made.id).data.lifecycle_state == "AVAILABLE"
    again = attached(api, attach(api, second, made))
    api.compute.detach_volume(again.id)
    attached(api, again, "DETACHED")
    api.compute.terminate_instance(second.id)
    for each in (made, other):
        api.block.delete_volume(each.id)


def test_another_availability_domain_is_refused(api: Api, subnet: Any) -> None:
    domains = [each.name for each in api.identity.list_availability_domains(api.tenancy).data]
    instance, made = (
        api.launch(subnet, "elsewhere"),
        volume(api, domain=next(name for name in domains if name != api.domain)),
    )
    with refused(400, "InvalidParameter"):
        attach(api, instance, made)
    api.compute.terminate_instance(instance.id)


def test_what_the_local_cloud_does_not_have_is_refused(api: Api, subnet: Any) -> None:
    instance, made = api.launch(subnet, "plain"), volume(api)
    for values in ({"is_read_only": True}, {"is_shareable": True}, {"device": "/dev/sdb"}):
        with refused(400, "InvalidParameter"):
            attach(api, instance, made, **values)
    details = models.AttachIScsiVolumeDetails(instance_id=instance.id, volume_id=made.id)
    with pytest.raises(oci.exceptions.ServiceError):
        api.compute.attach_volume(details)
    api.compute.terminate_instance(instance.id)


def test_the_devices_of_instances_differ() -> None:
    numbers = [volumes.minor(f"instance-{number}", device) for number in range(200) for device in volumes.DEVICES]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 4096
    assert max(numbers) < 1 << 20
    assert volumes.rules("a") != volumes.rules("b")
