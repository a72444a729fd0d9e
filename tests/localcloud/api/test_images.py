"""Images with the real SDK: the list, which shapes an image runs on, and custom images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import oci
import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running
from tests.localcloud.compute.test_image_catalogue import PLAIN, source


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("catalogue")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


def test_an_image_states_which_shapes_it_runs_on(api: Api) -> None:
    plain, debian = api.named_image(PLAIN), api.image()
    fitting = oci.pagination.list_call_get_all_results(
        api.compute.list_image_shape_compatibility_entries, plain.id
    ).data
    assert SHAPE in [entry.shape for entry in fitting]
    assert GPU_SHAPE not in [entry.shape for entry in fitting]
    assert api.compute.get_image_shape_compatibility_entry(debian.id, GPU_SHAPE).data.shape == GPU_SHAPE
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.get_image_shape_compatibility_entry(plain.id, GPU_SHAPE)
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.add_image_shape_compatibility_entry(plain.id, GPU_SHAPE)
    fitting = api.compute.list_shapes(api.tenancy, image_id=plain.id).data
    assert {entry.shape for entry in fitting} >= {SHAPE, "BM.HPC2.36"}
    assert not [entry.shape for entry in fitting if "GPU" in entry.shape]


def test_a_custom_image_takes_after_its_base_and_may_be_told_more(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "base", source_details=source(api.named_image(PLAIN).id))
    details = models.CreateImageDetails(compartment_id=api.tenancy, instance_id=instance.id, display_name="mine")
    image = api.wait(api.compute.get_image, api.compute.create_image(details).data.id, "AVAILABLE")
    assert (image.operating_system, image.operating_system_version) == ("Oracle Linux", "8")
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "own", shape=GPU_SHAPE, source_details=source(image.id))
    entry = api.compute.add_image_shape_compatibility_entry(image.id, GPU_SHAPE).data
    assert (entry.image_id, entry.shape) == (image.id, GPU_SHAPE)
    api.launch(subnet, "own", shape=GPU_SHAPE, source_details=source(image.id))
    api.compute.remove_image_shape_compatibility_entry(image.id, GPU_SHAPE)
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.remove_image_shape_compatibility_entry(image.id, GPU_SHAPE)
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.add_image_shape_compatibility_entry(image.id, "BM.Nothing.1")


@pytest.fixture(scope="module")
def private(api: Api, subnet: Any) -> Any:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    return api.subnet(vcn, "10.77.1.0/24", dns_label="prv", prohibit_public_ip_on_vnic=True)


def test_images(api: Api, private: Any) -> None:
    platform = api.image()
    assert (platform.operating_system, platform.operating_system_version) == ("Debian", "13")
    assert platform.compartment_id is None
    assert api.compute.list_images(api.tenancy, shape="Nothing.1").data == []
    shapes = api.compute.list_image_shape_compatibility_entries(platform.id, limit=1000).data
    assert GPU_SHAPE in [one.shape for one in shapes]
    with refused(409, "IncorrectState"):
        api.compute.delete_image(platform.id)

    instance = api.launch(private, "golden")
    details = models.CreateImageDetails(compartment_id=api.tenancy, instance_id=instance.id, display_name="baked")
    reply = api.compute.create_image(details)
    image = api.wait(api.compute.get_image, reply.data.id, "AVAILABLE")
    assert image.base_image_id == platform.id
    clone = api.launch(private, "clone", source_details=models.InstanceSourceViaImageDetails(image_id=image.id))
    commit = api.home / "null" / "images" / f"localhost_gpucluster_custom:{image.id[-12:]}"
    assert commit.exists()
    api.compute.delete_image(image.id)
    assert commit.exists(), "an instance still runs from it"
    api.compute.terminate_instance(clone.id)
    api.wait(api.compute.get_instance, clone.id, "TERMINATED")
    assert not commit.exists()
    newest = api.compute.list_images(
        api.tenancy, operating_system="Debian", operating_system_version="13", sort_by="TIMECREATED"
    ).data
    assert [one.id for one in newest] == [platform.id]
