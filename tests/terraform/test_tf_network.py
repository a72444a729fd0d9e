"""An existing network and existing homes, and a cluster without public addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

VCNS, SUBNETS, FILE_SYSTEMS = "/20160918/vcns", "/20160918/subnets", "/20171215/fileSystems"
INSTANCES = "/20160918/instances"
NETWORK_PARTS = (
    "vcns",
    "subnets",
    "internetGateways",
    "natGateways",
    "serviceGateways",
    "routeTables",
    "securityLists",
)


@pytest.fixture
def owned(cloud: LocalCloud) -> Iterator[dict[str, Any]]:
    """A VCN with a public and a private subnet, which has no DNS label, and a file system: of another user."""
    made: list[tuple[str, str]] = []

    def create(path: str, **body: Any) -> str:
        answer = cloud.client.call("POST", path, body={"compartmentId": cloud.credentials.tenancy, **body}).body
        made.append((path, answer["id"]))
        cloud.wait(path, answer["id"], "ACTIVE" if path == FILE_SYSTEMS else "AVAILABLE")
        return str(answer["id"])

    vcn = create(VCNS, cidrBlocks=["10.91.0.0/16"], displayName="theirs", dnsLabel="theirs")
    yield {
        "vcn_id": vcn,
        "public_subnet_id": create(SUBNETS, vcnId=vcn, cidrBlock="10.91.0.0/24", displayName="front", dnsLabel="front"),
        "private_subnet_id": create(
            SUBNETS, vcnId=vcn, cidrBlock="10.91.1.0/24", displayName="back", prohibitPublicIpOnVnic=True
        ),
        "file_system_id": create(FILE_SYSTEMS, availabilityDomain=AVAILABILITY_DOMAINS[0], displayName="theirs"),
    }
    for path, ocid in reversed(made):
        cloud.client.call("DELETE", f"{path}/{ocid}")


def _vnic(cloud: LocalCloud, name: str) -> dict[str, Any]:
    (instance,) = [item for item in cloud.standing(INSTANCES, "demo") if item["displayName"] == name]
    query = {"compartmentId": cloud.credentials.tenancy, "instanceId": instance["id"]}
    (attachment,) = cloud.client.items("/20160918/vnicAttachments", query)
    found: dict[str, Any] = cloud.client.call("GET", f"/20160918/vnics/{attachment['vnicId']}").body
    return found


def test_an_existing_network_and_file_system_are_used_and_kept(
    owned: dict[str, Any], workspace: Workspace, cloud: LocalCloud
) -> None:
    network = {
        **workspace.variables["network"],
        "vcn_cidr": "10.91.0.0/16",
        "public_subnet_cidr": "10.91.0.0/24",
        "private_subnet_cidr": "10.91.1.0/24",
        **{name: owned[name] for name in ("vcn_id", "public_subnet_id", "private_subnet_id")},
    }
    workspace.variables["home"]["file_system_id"] = owned["file_system_id"]
    cpu = {"shape": "VM.Standard.E5.Flex", "ocpus": 2, "memory_gb": 16, "rdma": False, "rdma_plugins": []}
    workspace.pool("cpu", kind="instances", count=1, max_count=1, **cpu)

    swapped = {"public_subnet_id": owned["private_subnet_id"], "private_subnet_id": owned["public_subnet_id"]}
    for wrong, words in (
        ({"vcn_cidr": "10.91.0.0/17"}, "has the CIDR blocks 10.91.0.0/16, not 10.91.0.0/17"),
        ({"private_subnet_cidr": "10.91.2.0/24"}, "has the CIDR block 10.91.1.0/24, not 10.91.2.0/24"),
        (
            {**swapped, "public_subnet_cidr": "10.91.1.0/24", "private_subnet_cidr": "10.91.0.0/24"},
            "prohibits public addresses: it can't be the public one",
        ),
    ):
        workspace.variables["network"] = {**network, **wrong}
        assert words in workspace.plan(check=False).errors.replace("\n", " ")

    workspace.variables["network"] = network
    workspace.apply()
    standing = {name: cloud.standing(f"/20160918/{name}", "demo") for name in NETWORK_PARTS}
    assert {name for name, items in standing.items() if items} == set()
    cluster = workspace.output()
    assert (cluster["vcn_id"], cluster["home"]["file_system_id"]) == (owned["vcn_id"], owned["file_system_id"])
    assert not cluster["private_subnet_domain_name"]
    controller, node = _vnic(cloud, "demo-controller"), _vnic(cloud, "cpu-1")
    assert (controller["subnetId"], node["subnetId"]) == (owned["public_subnet_id"], owned["private_subnet_id"])
    # Another cluster in the same subnet may have a controller, too; and without a DNS label there are no names.
    assert (controller["hostnameLabel"], node.get("hostnameLabel")) == ("demo-controller", None)
    (export,) = cloud.standing("/20171215/exports")
    assert export["fileSystemId"] == owned["file_system_id"]
    assert workspace.plan().changes == []

    workspace.destroy()
    remains = {path.rpartition("/")[2]: names for path, names in cloud.remains().items()}
    assert remains == {
        "vcns": ["theirs"],
        "subnets": ["back", "front"],
        "routeTables": ["Default Route Table for theirs"],
        "securityLists": ["Default Security List for theirs"],
        "fileSystems": ["theirs"],
    }


def test_behind_a_bastion_nothing_has_a_public_address(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.variables["network"] |= {"access": "bastion", "public_subnet_cidr": None}
    workspace.variables["home"]["server"] = "10.0.1.250"
    workspace.apply()
    assert [item["displayName"] for item in cloud.standing(SUBNETS, "demo")] == ["demo-private"]
    assert cloud.standing("/20160918/internetGateways", "demo") == []
    assert {cloud.standing(name, "demo") == [] for name in (FILE_SYSTEMS, "/20171215/mountTargets")} == {True}
    cluster = workspace.output()
    assert (cluster["public_subnet_id"], cluster["controller"]["public_ip"]) == (None, None)
    assert cluster["home"] == {"export_path": "/mnt/home", "file_system_id": None, "mount_target_ip": "10.0.1.250"}
    controller = _vnic(cloud, "demo-controller")
    assert (controller["subnetId"], controller.get("publicIp")) == (cluster["private_subnet_id"], None)
    assert controller["hostnameLabel"] == "controller"

    bastion = cloud.client.call("GET", f"/20210331/bastions/{cluster['bastion_id']}").body
    assert (bastion["bastionType"], bastion["name"], bastion["targetSubnetId"]) == (
        "STANDARD",
        "demo",
        cluster["private_subnet_id"],
    )
    assert bastion["clientCidrBlockAllowList"] == workspace.variables["network"]["ssh_allowed_cidrs"]
    assert workspace.plan().changes == []

    workspace.variables["network"]["ssh_allowed_cidrs"] = ["203.0.113.0/24"]
    assert workspace.apply().changes == [("oci_bastion_bastion.this[0]", "update")]
    workspace.destroy()
    assert cloud.remains() == {}
