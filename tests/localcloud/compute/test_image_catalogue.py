"""Platform images, the app catalog, and the shapes that an image runs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from gpucluster.oci import tags
from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running

PLAIN, GPU = "Oracle-Linux-8.10-2025.08.31-0", "Oracle-Linux-8.10-Gen2-GPU-2025.08.31-0"
BUILDS = ("2025.08.31-0", "2025.06.17-0", "2025.05.19-0")  # the newest three


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("catalogue")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


def source(image_id: str) -> Any:
    return models.InstanceSourceViaImageDetails(image_id=image_id)


def names(images: list[Any]) -> list[str]:
    return [image.display_name for image in images]


def test_images_are_listed_by_operating_system_and_shape(api: Api) -> None:
    listed = api.compute.list_images
    assert listed(api.tenancy).data[0].operating_system == "Debian"
    oracle = {"operating_system": "Oracle Linux", "operating_system_version": "8"}
    plain, gpu = (f"Oracle-Linux-8.10{kind}-" for kind in ("", "-Gen2-GPU"))
    assert set(names(listed(api.tenancy, **oracle).data)) == {
        variant + build for variant in (plain, gpu) for build in BUILDS
    }
    assert names(listed(api.tenancy, **oracle, shape=SHAPE).data) == [plain + build for build in BUILDS]
    assert names(listed(api.tenancy, **oracle, shape=GPU_SHAPE).data) == [gpu + build for build in BUILDS]
    assert listed(api.tenancy, **oracle, shape="BM.GPU.MI300X.8").data == []
    arm = names(listed(api.tenancy, shape="BM.GPU.GB200.4").data)
    assert arm == ["Debian-13-local", "Debian-12-local", "Canonical-Ubuntu-24.04-aarch64-2026.06.29-0"]
    ubuntu = listed(api.tenancy, operating_system="Canonical Ubuntu", sort_by="DISPLAYNAME").data
    assert {image.operating_system_version for image in ubuntu} == {"22.04", "24.04"}
    assert all(image.compartment_id is None for image in ubuntu)


def test_an_image_states_what_it_contains(api: Api) -> None:
    debian = {image.operating_system_version: image for image in api.compute.list_images(api.tenancy).data
              if image.operating_system == "Debian"}  # fmt: skip
    assert {version: image.freeform_tags for version, image in debian.items()} == {
        version: {tags.CONTAINS: f"Debian {version}"} for version in ("12", "13")
    }
    oracle = api.named_image(PLAIN).freeform_tags
    assert oracle[tags.CONTAINS] == "Debian 13"
    assert {"chrony", "hostinfo"} <= set(oracle[tags.TRAPS].split())


def test_a_shape_is_launched_from_an_image_that_fits(api: Api, subnet: Any) -> None:
    plain = api.named_image(PLAIN)
    with refused(400, "InvalidParameter") as said:
        api.launch(subnet, "gpu", shape=GPU_SHAPE, source_details=source(plain.id))
    assert said == [f"Shape {GPU_SHAPE} is not valid for image {plain.id}"]
    with refused(400, "InvalidParameter") as said:
        api.configuration(source_details=models.InstanceConfigurationInstanceSourceViaImageDetails(image_id=plain.id))
    assert said == [f"Shape {GPU_SHAPE} is incompatible with image {plain.id}"]
    chosen = models.InstanceSourceImageFilterDetails(
        compartment_id=api.tenancy, operating_system="Oracle Linux", operating_system_version="8"
    )
    by_filter = models.InstanceSourceViaImageDetails(instance_source_image_filter_details=chosen)
    instance = api.launch(subnet, "gpu", shape=GPU_SHAPE, source_details=by_filter)
    assert instance.image_id == api.named_image(GPU).id
