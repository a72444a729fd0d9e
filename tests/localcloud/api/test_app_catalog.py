"""The app catalog with the real SDK: listings, versions, agreements and subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running
from tests.localcloud.compute.test_image_catalogue import source
from tests.localcloud.compute.test_launch_images import GPU_LISTING, versions

HPC_LISTING = "Oracle Linux - HPC Cluster Networking Image"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("catalogue")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


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
