"""The standby and the host in service: the real Terraform and root, the stand-in provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpucluster.handover.adoption import STANDBY
from gpucluster.handover.outputs import Outputs
from gpucluster.oci.names import STATE_DEVICE
from tests.terraform.conftest import LocalCloud
from tests.terraform.site_harness import Site
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.story]

ATTACHMENT = "module.state_volume[0].oci_core_volume_attachment.this"
INSTANCES, ATTACHMENTS = "/20160918/instances", "/20160918/volumeAttachments"


@pytest.fixture(scope="module")
def site(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    site = Site(cloud, terraform_environment, tmp_path_factory.mktemp("pair") / "site", "pair")
    site.workspace.variables["controller"]["state_volume"] = {"size_gb": 50, "device": STATE_DEVICE}
    site.workspace.variables["controller"]["standby"] = True
    site.apply()
    yield site
    site.destroy()


def parsed(site: Site) -> Outputs:
    return Outputs.parse(site.terraform().outputs())


def changes(site: Site) -> set[tuple[str, str]]:
    _, plan = site.plan()
    return {(each.address, each.action) for each in plan.changes if not each.internal}


def attached_to(site: Site) -> str:
    query = {"compartmentId": site.cloud.credentials.tenancy}
    listed = [each for each in site.cloud.client.items(ATTACHMENTS, query) if each["lifecycleState"] == "ATTACHED"]
    (one,) = [each for each in listed if each["displayName"] == "pair-state"]
    return str(one["instanceId"])


def test_the_controller_is_in_service_first(site: Site) -> None:
    outputs = parsed(site)
    assert outputs.standby is not None
    assert (outputs.controller.name, outputs.standby.name) == ("pair-controller", "pair-standby")
    assert attached_to(site) == outputs.controller.id
    assert outputs.state_volume_id
    assert changes(site) == set()


def test_the_volume_belongs_to_the_host_that_the_record_names(site: Site) -> None:
    """A failover moves the attachment itself; the plan then agrees with the record, and never moves it back."""
    before = parsed(site)
    assert before.standby is not None
    site.workspace.variables["service"] = {"host": "standby", "address": "10.0.0.9"}
    assert changes(site) == {(ATTACHMENT, "replace")}
    site.apply()
    assert attached_to(site) == before.standby.id
    after = parsed(site)
    assert (after.controller.id, after.controller_address) == (before.standby.id, "10.0.0.9")
    assert after.standby is not None
    assert after.standby.id == before.controller.id
    assert after.controller.name == "pair-controller"
    assert changes(site) == set()


def test_the_plan_names_a_standby_in_service_that_is_gone(site: Site) -> None:
    gone = parsed(site).controller.id
    site.cloud.client.call("DELETE", f"{INSTANCES}/{gone}")
    site.cloud.wait(INSTANCES, gone, "TERMINATED")
    wait_for("the volume is free", lambda: changes(site) == {(STANDBY, "create"), (ATTACHMENT, "create")})
    site.workspace.variables["service"] = {}
    site.apply()
    assert attached_to(site) == parsed(site).controller.id
