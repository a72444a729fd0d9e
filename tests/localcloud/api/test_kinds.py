"""What all resources of simple kinds have in common, with the real SDK: names, tags, etags, pages, unknown ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from tests.localcloud.api_harness import Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("network"))) as api:
        yield api


@pytest.fixture
def vcn(api: Api) -> Iterator[Any]:
    vcn = api.vcn()
    yield vcn
    for subnet in api.network.list_subnets(api.tenancy, vcn_id=vcn.id).data:
        api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(vcn.id)


def test_names_tags_and_etags(api: Api, vcn: Any) -> None:
    reply = api.network.get_vcn(vcn.id)
    assert reply.data.freeform_tags == {}
    assert reply.data.defined_tags == {}
    assert reply.data.security_attributes == {}
    details = models.UpdateVcnDetails(display_name="renamed", freeform_tags={"a": "b"})
    changed = api.network.update_vcn(vcn.id, details, if_match=reply.headers["etag"])
    assert (changed.data.display_name, changed.data.freeform_tags) == ("renamed", {"a": "b"})
    with refused(412, "NoEtagMatch"):
        api.network.update_vcn(vcn.id, details, if_match=reply.headers["etag"])


def test_pages_follow_one_another_without_gaps_and_repeats(api: Api, vcn: Any) -> None:
    made = [api.subnet(vcn, f"10.77.{n}.0/24", dns_label=f"s{n}", display_name=f"s{n}").id for n in range(5)]
    listing = api.network.list_subnets
    for order, expected in (("ASC", made), ("DESC", made[::-1])):
        found = oci.pagination.list_call_get_all_results(
            listing, api.tenancy, vcn_id=vcn.id, limit=2, sort_by="TIMECREATED", sort_order=order
        ).data
        assert [one.id for one in found] == expected
    first = listing(api.tenancy, vcn_id=vcn.id, limit=2, sort_by="DISPLAYNAME")
    assert [one.display_name for one in first.data] == ["s0", "s1"]
    second = listing(api.tenancy, vcn_id=vcn.id, limit=10, sort_by="DISPLAYNAME", page=first.next_page)
    assert [one.display_name for one in second.data] == ["s2", "s3", "s4"]
    assert second.next_page is None
    with refused(400, "InvalidParameter"):
        listing(api.tenancy, page="nonsense")


def test_unknown_things(api: Api) -> None:
    with refused(404, "NotAuthorizedOrNotFound"):
        api.network.get_vcn("ocid1.vcn.local..none")
    with refused(404, "NotAuthorizedOrNotFound"):
        api.network.list_vcns("ocid1.compartment.local..none")
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        details = models.CreateSubnetDetails(
            compartment_id=api.tenancy, vcn_id="ocid1.vcn.local..none", cidr_block="10.0.0.0/24"
        )
        api.network.create_subnet(details)
    with refused(404, "NotFound"):
        api.network.list_public_ip_pools(api.tenancy)
