"""Rows for the images of the catalogue, and the choice of an image for a launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.state.store import ResourceStore
from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running
from tests.localcloud.compute.test_image_catalogue import PLAIN, source

GPU_LISTING = "Oracle Linux - GPU Cluster Networking Image"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("catalogue")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


def versions(api: Api, name: str) -> list[Any]:
    (listing,) = api.compute.list_app_catalog_listings(display_name=name).data
    return list(api.compute.list_app_catalog_listing_resource_versions(listing.listing_id).data)


def test_an_older_build_is_not_listed_and_there_by_its_ocid(api: Api, subnet: Any) -> None:
    """OCI lists the newest three of each platform image; the others can still be launched."""
    name = "Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0"
    (row,) = ResourceStore(api.home / "cloud.db").find("image", displayName=name)
    assert api.compute.list_images(api.tenancy, display_name=name).data == []
    assert api.compute.get_image(row.id).data.display_name == name
    instance = api.launch(subnet, "old-build", shape=GPU_SHAPE, source_details=source(row.id))
    assert instance.image_id == row.id


def test_a_stand_in_is_refused_with_words_where_the_operator_wants_none(api: Api, subnet: Any) -> None:
    file = api.home / "images" / "settings.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"stand_ins": false}')
    try:
        with refused(400, "InvalidParameter") as said:
            api.launch(subnet, "oracle", source_details=source(api.named_image(PLAIN).id))
        api.launch(subnet, "debian")
    finally:
        file.unlink()
    assert "its name is that of Oracle Linux 8, and it contains Debian 13" in said[0]
    assert "can't make one that dnf installs" in said[0]


def test_a_restart_publishes_nothing_twice(tmp_path: Path) -> None:
    with running(tmp_path) as api:
        before = [image.id for image in api.compute.list_images(api.tenancy).data]
        listed = [version.listing_resource_id for version in versions(api, GPU_LISTING)]
        api.kill()
        api.start()
        fresh = Api(tmp_path)
        assert [image.id for image in fresh.compute.list_images(fresh.tenancy).data] == before
        assert [version.listing_resource_id for version in versions(fresh, GPU_LISTING)] == listed
