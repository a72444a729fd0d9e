"""Host names of a VCN's instances: which names there are, and the answers."""

from __future__ import annotations

from collections.abc import Iterator

import oci
import pytest

from tests.localcloud.api_harness import running
from tests.localcloud.server.test_name_server import Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("cloud")
    with running(home) as api:
        made = Site(home, api)
        yield made
        made.close()


def test_instances_of_a_vcn_have_names_in_all_its_subnets_and_addresses_have_them_too(site: Site) -> None:
    assert site.ask("node-1.prv.one.oraclevcn.com") == ("NOERROR", [site.address(site.node)])
    assert site.ask("NODE-1.PRV.One.OracleVCN.com") == ("NOERROR", [site.address(site.node)])
    assert site.ask("controller.pub.one.oraclevcn.com") == ("NOERROR", [site.address(site.controller)])
    turned = ".".join(reversed(site.address(site.node).split("."))) + ".in-addr.arpa"
    assert site.ask(turned, "PTR") == ("NOERROR", ["node-1.prv.one.oraclevcn.com."])


def test_a_name_without_a_record_of_the_kind_still_exists(site: Site) -> None:
    assert site.ask("node-1.prv.one.oraclevcn.com", "AAAA") == ("NOERROR", [])


@pytest.mark.parametrize(
    "name",
    ["none.prv.one.oraclevcn.com", "node-1.pub.one.oraclevcn.com", "other.prv.two.oraclevcn.com", "oraclevcn.com",
     "node-1"],
)  # fmt: skip
def test_other_names_of_vcns_do_not_exist_and_the_internet_is_not_asked(site: Site, name: str) -> None:
    before = list(site.internet.asked)
    assert site.ask(name) == ("NXDOMAIN", [])
    assert site.internet.asked == before


def test_each_vcn_has_its_own_names(site: Site) -> None:
    assert site.ask("other.prv.two.oraclevcn.com", at=site.second) == ("NOERROR", ["10.78.0.2"])
    assert site.ask("node-1.prv.one.oraclevcn.com", at=site.second)[0] == "NXDOMAIN"
    turned = ".".join(reversed(site.address(site.node).split("."))) + ".in-addr.arpa"
    before = len(site.internet.asked)
    assert site.ask_patiently(turned, "PTR", at=site.second)[0] == "NXDOMAIN"
    assert set(site.internet.asked[before:]) == {turned}, "an address of another VCN is one of the internet"


def test_a_name_follows_its_instance(site: Site) -> None:
    made = site.api.launch(site.private, "brief")
    assert site.ask("brief.prv.one.oraclevcn.com") == ("NOERROR", [site.address(made)])
    attachment = site.api.compute.list_vnic_attachments(site.api.tenancy, instance_id=made.id).data[0]
    site.api.network.update_vnic(attachment.vnic_id, oci.core.models.UpdateVnicDetails(hostname_label="renamed"))
    assert site.ask("brief.prv.one.oraclevcn.com")[0] == "NXDOMAIN"
    assert site.ask("renamed.prv.one.oraclevcn.com") == ("NOERROR", [site.address(made)])
    site.api.compute.terminate_instance(made.id)
    site.api.wait(site.api.compute.get_instance, made.id, "TERMINATED")
    assert site.ask("renamed.prv.one.oraclevcn.com")[0] == "NXDOMAIN"
