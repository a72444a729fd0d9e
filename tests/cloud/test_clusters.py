"""Which clusters a compartment has, by the tags of their instances, file systems and networks; with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.clusters import CloudContents, Sighting, in_compartment, sightings
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


def tagged(cluster: str, identity: str = "", **more: str) -> dict[str, str]:
    return {"gpucluster": cluster, **({"gpucluster-id": identity} if identity else {}), **more}


def network(api: Api, cidr: str, tags: dict[str, str]) -> Any:
    details = oci.core.models.CreateVcnDetails(
        cidr_blocks=[cidr], compartment_id=api.tenancy, freeform_tags=tags, dns_label=f"net{cidr.split('.')[1]}"
    )
    return api.network.create_vcn(details).data


def test_resources_are_counted_by_the_cluster_that_their_tags_name(api: Api) -> None:
    access = CloudAccess(oci.config.from_file(str(api.home / "credentials" / "config")), api.endpoint, api.tenancy)
    assert in_compartment(access) == ()
    subnet = api.subnet(network(api, "10.0.0.0/16", tagged("beta", "ab12")), "10.0.1.0/24")
    network(api, "10.1.0.0/16", tagged("beta", "cd34"))
    network(api, "10.2.0.0/16", {"team": "of nobody"})
    for name in ("beta-controller", "beta-1"):
        api.launch(subnet, name, freeform_tags=tagged("beta", "ab12"))
    gone = api.launch(subnet, "beta-2", freeform_tags=tagged("beta", "ab12"))
    api.compute.terminate_instance(gone.id)
    api.wait(api.compute.get_instance, gone.id, "TERMINATED")
    api.files.create_file_system(
        oci.file_storage.models.CreateFileSystemDetails(
            availability_domain=api.domain, compartment_id=api.tenancy, freeform_tags=tagged("alpha")
        )
    )
    alpha, beta = in_compartment(access)
    assert alpha == CloudContents("alpha", api.tenancy, {}, file_systems=1)
    assert beta == CloudContents("beta", api.tenancy, {"RUNNING": 2}, networks=2, ids=("ab12", "cd34"))
    assert not beta.empty
    (seen,) = (each for each in sightings(access) if each.id == subnet.vcn_id)
    assert (seen.kind, seen.identity, seen.address_range) == ("vcn", "ab12", "10.0.0.0/16")
    assert seen.created


def test_the_lock_is_on_a_network_or_on_the_controller_of_an_existing_one() -> None:
    assert Sighting("demo", "vcn", "v", "demo").carries_lock
    assert Sighting("demo", "instance", "i", "demo-controller", controller=True).carries_lock
    assert not Sighting("demo", "instance", "i", "demo-1").carries_lock
    assert not Sighting("demo", "file_system", "f", "home").carries_lock


def test_a_cluster_of_which_nothing_is_found_is_empty() -> None:
    assert CloudContents("demo").empty
    assert not CloudContents("demo", file_systems=1).empty
