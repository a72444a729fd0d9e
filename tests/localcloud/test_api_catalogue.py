"""Platform images, the app catalog, and the shapes that an image runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.oci import tags
from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running

GPU_LISTING = "Oracle Linux - GPU Cluster Networking Image"
HPC_LISTING = "Oracle Linux - HPC Cluster Networking Image"
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


def versions(api: Api, name: str) -> list[Any]:
    (listing,) = api.compute.list_app_catalog_listings(display_name=name).data
    return list(api.compute.list_app_catalog_listing_resource_versions(listing.listing_id).data)


def subscribe(api: Api, version: Any, **changes: Any) -> Any:
    ids = (version.listing_id, version.listing_resource_version)
    agreements = api.compute.get_app_catalog_listing_agreements(*ids).data
    details = {
        "compartment_id": api.tenancy,
        "listing_id": version.listing_id,
        "listing_resource_version": version.listing_resource_version,
        "oracle_terms_of_use_link": agreements.oracle_terms_of_use_link,
        "eula_link": agreements.eula_link,
        "time_retrieved": agreements.time_retrieved,
        "signature": agreements.signature,
        **changes,
    }
    return api.compute.create_app_catalog_subscription(models.CreateAppCatalogSubscriptionDetails(**details)).data


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


def test_an_older_build_is_not_listed_and_there_by_its_ocid(api: Api, subnet: Any) -> None:
    """OCI lists the newest three of each platform image; the others can still be launched."""
    name = "Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0"
    (row,) = ResourceStore(api.home / "cloud.db").find("image", displayName=name)
    assert api.compute.list_images(api.tenancy, display_name=name).data == []
    assert api.compute.get_image(row.id).data.display_name == name
    instance = api.launch(subnet, "old-build", shape=GPU_SHAPE, source_details=source(row.id))
    assert instance.image_id == row.id


def test_an_image_states_what_it_contains(api: Api) -> None:
    debian = {image.operating_system_version: image for image in api.compute.list_images(api.tenancy).data
              if image.operating_system == "Debian"}  # fmt: skip
    assert {version: image.freeform_tags for version, image in debian.items()} == {
        version: {tags.CONTAINS: f"Debian {version}"} for version in ("12", "13")
    }
    oracle = api.named_image(PLAIN).freeform_tags
    assert oracle[tags.CONTAINS] == "Debian 13"
    assert {"chrony", "hostinfo"} <= set(oracle[tags.TRAPS].split())


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


def test_the_app_catalog_shows_listings_versions_and_agreements(api: Api) -> None:
    listings = api.compute.list_app_catalog_listings(publisher_name="Oracle Linux", sort_order="ASC").data
    assert [listing.display_name for listing in listings] == [HPC_LISTING, GPU_LISTING]
    assert api.compute.list_app_catalog_listings(display_name="Nothing").data == []
    newest, _, oldest = versions(api, GPU_LISTING)
    assert newest.time_published > oldest.time_published
    amd = api.compute.get_app_catalog_listing_resource_version(newest.listing_id, newest.listing_resource_version).data
    assert "BM.GPU.MI300X.8" in amd.compatible_shapes
    assert GPU_SHAPE not in amd.compatible_shapes
    newest = oldest
    listing = api.compute.get_app_catalog_listing(newest.listing_id).data
    assert (listing.display_name, listing.time_published) == (GPU_LISTING, amd.time_published)
    whole = api.compute.get_app_catalog_listing_resource_version(
        newest.listing_id, newest.listing_resource_version
    ).data
    assert {GPU_SHAPE, SHAPE} <= set(whole.compatible_shapes)
    image = api.compute.get_image(newest.listing_resource_id).data
    assert (image.operating_system, image.display_name) == ("Oracle Linux", newest.listing_resource_version)
    assert image.id not in [one.id for one in api.compute.list_images(api.tenancy).data]
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.get_app_catalog_listing_resource_version(newest.listing_id, "no-such-version")
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.list_app_catalog_listing_resource_versions("ocid1.appcataloglisting.local..no")


def test_the_image_of_a_listing_needs_a_subscription_of_the_compartment(api: Api, subnet: Any) -> None:
    newest, oldest = versions(api, HPC_LISTING)
    details = {"source_details": source(newest.listing_resource_id)}
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound") as said:
        api.launch(subnet, "hpc", **details)
    assert newest.listing_id in said[0]
    with refused(400, "InvalidParameter"):
        subscribe(api, newest, signature="not signed")
    made = subscribe(api, newest)
    assert (made.display_name, made.listing_resource_id) == (HPC_LISTING, newest.listing_resource_id)
    assert subscribe(api, newest).time_created == made.time_created
    listed = api.compute.list_app_catalog_subscriptions(api.tenancy, listing_id=newest.listing_id).data
    assert [one.listing_resource_version for one in listed] == [newest.listing_resource_version]
    api.launch(subnet, "hpc", **details)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(subnet, "old", source_details=source(oldest.listing_resource_id))
    gone = (newest.listing_id, api.tenancy, newest.listing_resource_version)
    api.compute.delete_app_catalog_subscription(*gone)
    assert api.compute.list_app_catalog_subscriptions(api.tenancy, listing_id=newest.listing_id).data == []
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.delete_app_catalog_subscription(*gone)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(subnet, "again", **details)


def test_a_restart_publishes_nothing_twice(tmp_path: Path) -> None:
    with running(tmp_path) as api:
        before = [image.id for image in api.compute.list_images(api.tenancy).data]
        listed = [version.listing_resource_id for version in versions(api, GPU_LISTING)]
        api.kill()
        api.start()
        fresh = Api(tmp_path)
        assert [image.id for image in fresh.compute.list_images(fresh.tenancy).data] == before
        assert [version.listing_resource_id for version in versions(fresh, GPU_LISTING)] == listed
