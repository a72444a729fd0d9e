"""The volume with the controller's state outlives it: the real Terraform and root, the stand-in provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpucluster.handover.adoption import CONTROLLER, STATE_VOLUME
from gpucluster.oci.names import STATE_DEVICE
from tests.terraform.conftest import LocalCloud
from tests.terraform.site_harness import Site
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.story]

ATTACHMENT = "module.state_volume[0].oci_core_volume_attachment.this"
INSTANCES, VOLUMES, ATTACHMENTS = "/20160918/instances", "/20160918/volumes", "/20160918/volumeAttachments"


@pytest.fixture(scope="module")
def site(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    site = Site(cloud, terraform_environment, tmp_path_factory.mktemp("volume") / "site", "volume")
    site.workspace.variables["controller"]["state_volume"] = {"size_gb": 50, "device": STATE_DEVICE}
    site.apply()
    yield site
    site.destroy()
    assert site.ids(VOLUMES) == []


def address(site: Site) -> str:
    return str(site.terraform().outputs()["cluster"]["controller"]["private_ip"])


def clouds(site: Site) -> set[str]:
    """What the state has of the cloud."""
    return {ocid for ocid in site.prepared().contents().ids if ocid.startswith("ocid1.")}


def attached_to(site: Site) -> tuple[str, str]:
    """The volume and the instance that it is attached to, as the cloud has it."""
    query = {"compartmentId": site.cloud.credentials.tenancy}
    listed = [each for each in site.cloud.client.items(ATTACHMENTS, query) if each["lifecycleState"] == "ATTACHED"]
    (one,) = [each for each in listed if each["displayName"] == "volume-state"]
    assert one["device"] == STATE_DEVICE
    return str(one["volumeId"]), str(one["instanceId"])


def test_it_is_attached_to_the_controller_and_nothing_is_left_to_do(site: Site) -> None:
    assert attached_to(site) == (site.ids(VOLUMES)[0], site.ids(INSTANCES)[0])
    _, plan = site.plan()
    assert plan.changes == ()


def test_another_controller_gets_it_with_the_address_after_the_first_is_gone(site: Site) -> None:
    volume, first = attached_to(site)
    before = address(site)
    site.cloud.client.call("DELETE", f"{INSTANCES}/{first}")
    site.cloud.wait(INSTANCES, first, "TERMINATED")
    assert site.ids(VOLUMES) == [volume]
    site.workspace.variables["controller"]["private_ip"] = before
    _, plan = site.plan()
    assert {(each.address, each.action) for each in plan.changes if not each.internal} == {
        (CONTROLLER, "create"),
        (ATTACHMENT, "create"),
    }
    site.apply()
    assert attached_to(site)[0] == volume
    assert attached_to(site)[1] != first
    assert address(site) == before
    site.workspace.variables["controller"]["private_ip"] = None
    _, plan = site.plan()
    assert [each for each in plan.changes if not each.internal] == []


def test_a_controller_that_is_replaced_takes_it_along(site: Site) -> None:
    volume, first = attached_to(site)
    before = address(site)
    site.workspace.variables["controller"]["private_ip"] = before
    terraform = site.prepared()
    plan = terraform.plan(recreate=(CONTROLLER,))
    assert plan.lost("oci_core_volume") == ()
    terraform.apply(plan)
    assert attached_to(site)[0] == volume
    assert attached_to(site)[1] != first
    assert address(site) == before


def test_a_lost_state_finds_both_again(site: Site) -> None:
    before = attached_to(site)
    ids = clouds(site)
    (site.paths.terraform_state).unlink()
    site.recover()
    assert {STATE_VOLUME, ATTACHMENT} <= set(site.prepared().addresses())
    assert clouds(site) == ids
    assert attached_to(site) == before
    _, plan = site.plan()
    # An import knows no time limits: they are added in place.
    assert {each.action for each in plan.changes if not each.internal} <= {"update"}


def test_it_grows_in_place(site: Site) -> None:
    (volume,) = site.ids(VOLUMES)
    site.workspace.variables["controller"]["state_volume"]["size_gb"] = 60
    site.apply()
    assert [(each["id"], each["sizeInGBs"]) for each in site.standing(VOLUMES)] == [(volume, 60)]
    wait_for("it is attached", lambda: attached_to(site)[0] == volume)
