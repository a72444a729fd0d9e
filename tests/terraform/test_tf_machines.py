"""The settings of machines reach the API: firmware, boot volumes, reservations, user data, tags, images."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.handover import RDMA_PLUGINS
from gpucluster.localcloud.provider.schema import SchemaBlock, catalogue
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.oci.image_names import version_filter

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Ran, Workspace

pytestmark = pytest.mark.slow

INSTANCES, CONFIGURATIONS = "/20160918/instances", "/20160918/instanceConfigurations"
SUBSCRIPTIONS = "/20160918/appCatalogSubscriptions"
_EMPTY: dict[str, Any] = {"bool": False, "number": 0, "string": ""}
TAGS = {"Operations.CostCenter": "42"}
RESERVATIONS = "/20160918/computeCapacityReservations"
LISTING = "Oracle Linux - GPU Cluster Networking Image"


@pytest.fixture
def reservation(cloud: LocalCloud) -> Iterator[str]:
    """Reserved capacity."""
    body = {
        "compartmentId": cloud.credentials.tenancy,
        "availabilityDomain": AVAILABILITY_DOMAINS[0],
        "displayName": "ours",
        "instanceReservationConfigs": [{"instanceShape": "BM.GPU4.8", "reservedCount": 6}],
    }
    ocid = str(cloud.client.call("POST", RESERVATIONS, body=body).body["id"])
    cloud.wait(RESERVATIONS, ocid, "ACTIVE")
    yield ocid
    cloud.client.call("DELETE", f"{RESERVATIONS}/{ocid}")


def _launch_details(cloud: LocalCloud, pool: str) -> dict[str, Any]:
    (one,) = [item for item in cloud.standing(CONFIGURATIONS, "demo") if item["displayName"] == f"demo-{pool}"]
    found: dict[str, Any] = cloud.client.call("GET", f"{CONFIGURATIONS}/{one['id']}").body
    details: dict[str, Any] = found["instanceDetails"]["launchDetails"]
    return details


def _instance(cloud: LocalCloud, name: str) -> dict[str, Any]:
    (one,) = [item for item in cloud.standing(INSTANCES, "demo") if item["displayName"] == name]
    found: dict[str, Any] = cloud.client.call("GET", f"{INSTANCES}/{one['id']}").body
    return found


def _with_empty_values(file: Path) -> int:
    """Store `false`, 0 and empty texts where nothing is set, as oracle/oci does. Returns their number."""
    state, number = json.loads(file.read_text()), 0

    def fill(block: SchemaBlock, values: dict[str, Any]) -> None:
        nonlocal number
        for name, attribute in block.attributes.items():
            empty = _EMPTY.get(str(attribute.type))
            if values.get(name) is None and attribute.optional and not attribute.computed and empty is not None:
                values[name] = empty
                number += 1
        for name, nested in block.blocks.items():
            for each in values.get(name) or () if nested.nesting != "single" else ():
                fill(nested, each)

    for resource in state["resources"]:
        kind = catalogue().resources.get(resource["type"])
        if kind is not None and resource["mode"] == "managed":
            for instance in resource["instances"]:
                fill(kind.schema, instance["attributes"])
    state["serial"] += 1
    file.write_text(json.dumps(state))
    return number


def _address(name: str) -> str:
    return f'module.pool["single"].module.instance["{name}"].oci_core_instance.this'


def _hosts(ran: Ran) -> list[tuple[str, str]]:
    """The changes without what only Terraform's state has."""
    return [change for change in ran.changes if "terraform_data." not in change[0]]


def test_every_setting_reaches_the_machines_and_every_resource_is_tagged(
    reservation: str, workspace: Workspace, cloud: LocalCloud
) -> None:
    settings: dict[str, Any] = {
        "boot_volume_vpus_per_gb": 30,
        "platform": {"type": "AMD_ROME_BM_GPU", "numa_nodes_per_socket": "NPS4", "smt": False},
        "capacity_reservation_id": reservation,
        "user_data": "#cloud-config\n",
        "disabled_plugins": ["OS Management Service Agent"],
    }
    workspace.variables["defined_tags"] = TAGS
    workspace.variables["controller"] |= {"boot_volume_vpus_per_gb": 20, "user_data": "#cloud-config\ntimezone: UTC\n"}
    machine = workspace.variables["controller"]
    workspace.variables["login"] = {**machine, "names": ["demo-login-1", "demo-login-2"], "boot_volume_vpus_per_gb": 40}
    workspace.pool("compute", **settings)
    workspace.pool("single", kind="instances", count=3, max_count=3, rdma=False, rdma_plugins=[], **settings)
    workspace.apply()

    details, node, controller = (
        _launch_details(cloud, "compute"), _instance(cloud, "single-2"), _instance(cloud, "demo-controller")
    )  # fmt: skip
    text = base64.b64encode(b"#cloud-config\n").decode()
    for body in (details, node):
        assert body["platformConfig"] == {
            "type": "AMD_ROME_BM_GPU",
            "numaNodesPerSocket": "NPS4",
            "isSymmetricMultiThreadingEnabled": False,
        }
        assert body["capacityReservationId"] == reservation
        assert body["metadata"]["user_data"] == text
        assert body["sourceDetails"]["bootVolumeVpusPerGB"] == 30
        assert body["instanceOptions"]["areLegacyImdsEndpointsDisabled"] is True
        assert body["definedTags"] == {"Operations": {"CostCenter": "42"}}
    enabled = [{"name": name, "desiredState": "ENABLED"} for name in RDMA_PLUGINS]
    disabled = [{"name": "OS Management Service Agent", "desiredState": "DISABLED"}]
    assert details["agentConfig"]["pluginsConfig"] == enabled + disabled
    assert node["agentConfig"]["pluginsConfig"] == disabled
    assert controller["sourceDetails"]["bootVolumeVpusPerGB"] == 20
    assert controller.get("platformConfig") is None
    login = _instance(cloud, "demo-login-2")
    assert (login["sourceDetails"]["bootVolumeVpusPerGB"], login["imageId"]) == (40, controller["imageId"])
    reached = workspace.output()["login"]
    assert [one["name"] for one in reached] == ["demo-login-1", "demo-login-2"]
    assert all(one["public_ip"] for one in reached)
    assert base64.b64decode(controller["metadata"]["user_data"]) == b"#cloud-config\ntimezone: UTC\n"
    _check_tags(cloud)
    assert workspace.plan().changes == []
    assert _with_empty_values(workspace.folder / "terraform.tfstate") > 10
    assert workspace.plan().changes == []

    # A node that was removed by name is deleted, and the others stay; user data affects new nodes. So with login nodes.
    workspace.variables["login"]["names"] = ["demo-login-1"]
    workspace.pool("single", count=2, max_count=2, node_names=["single-1", "single-3"], user_data="#cloud-config\n#2\n")
    login_2 = 'module.login["demo-login-2"].oci_core_instance.this'
    assert _hosts(workspace.apply()) == [(login_2, "delete"), (_address("single-2"), "delete")]
    assert [one["name"] for one in workspace.output()["pools"]["single"]["instances"]] == ["single-1", "single-3"]
    workspace.pool("single", count=3, max_count=3, node_names=["single-1", "single-3", "single-4"])
    assert _hosts(workspace.plan()) == [(_address("single-4"), "create")]
    workspace.pool("single", count=2, max_count=2, node_names=["single-1", "single-3"])

    # A removed argument is also removed from the launch details of new nodes.
    workspace.pool("compute", platform=None, capacity_reservation_id=None, boot_volume_vpus_per_gb=10, user_data=None)
    assert [action for _, action in workspace.apply().changes] == ["update", "replace", "update"]
    details = _launch_details(cloud, "compute")
    assert {"platformConfig", "capacityReservationId"} & {name for name, value in details.items() if value} == set()
    assert "user_data" not in details["metadata"]
    assert details["sourceDetails"].get("bootVolumeVpusPerGB") == 10
    assert workspace.plan().changes == []

    # Another plugin that is turned off changes the machines and replaces none.
    workspace.pool("single", node_names=["single-1", "single-3"], disabled_plugins=["Bastion"])
    assert _hosts(workspace.plan()) == [(_address("single-1"), "update"), (_address("single-3"), "update")]


def _check_tags(cloud: LocalCloud) -> None:
    roles: dict[str, set[str]] = {}
    for collection in (
        "/20160918/vcns", "/20160918/subnets", "/20160918/internetGateways", "/20160918/natGateways",
        "/20160918/serviceGateways", "/20160918/routeTables", "/20160918/securityLists", INSTANCES, CONFIGURATIONS,
        "/20160918/clusterNetworks", "/20160918/instancePools", "/20171215/fileSystems", "/20171215/mountTargets",
    ):  # fmt: skip
        # The default resources of a VCN have no tags.
        items = [one for one in cloud.standing(collection) if not str(one["displayName"]).startswith("Default ")]
        assert items, collection
        for one in items:
            assert one["definedTags"] == {"Operations": {"CostCenter": "42"}}, collection
            assert one["freeformTags"]["gpucluster"] == "demo"
            roles.setdefault(one["freeformTags"]["role"], set()).add(collection.rpartition("/")[2])
            assert (one["freeformTags"]["role"] == "compute") == ("pool" in one["freeformTags"])
    assert {role: len(collections) for role, collections in roles.items()} == {
        "network": 7,
        "storage": 2,
        "controller": 1,
        "login": 1,
        "compute": 4,
    }


def _listed(wanted: str | None = None, *, amd: bool = False) -> dict[str, Any]:
    """An image of the listing, as the handover writes it."""
    chosen = version_filter(wanted, amd=amd)
    parts = {"name": chosen.name, "matching": chosen.matching, "excluding": chosen.excluding}
    return {"listing": LISTING, "listing_version": wanted, "listing_filter": parts}


def test_an_image_of_the_marketplace_is_subscribed_to_once_and_kept(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.pool("a", kind="compute_cluster", count=0, max_count=1, image={"listing": "No such listing"})
    assert 'no image listing named "No such listing"' in workspace.plan(check=False).errors.replace("\n", " ")
    workspace.pool("a", image=_listed("*-GPU-590-*"))
    refused = workspace.plan(check=False).errors.replace("\n", " ")
    assert f"The listing {LISTING} has no version *-GPU-590-* for this shape. It has: Oracle-Linux-8" in refused

    # The newest version of all is AMD's. A node with NVIDIA GPUs gets the newest of NVIDIA's, and the other way round.
    for pool in ("a", "b"):
        workspace.pool(pool, kind="compute_cluster", count=0, max_count=1, image=_listed())
    amd = "BM.GPU.MI300X.8"
    workspace.pool("amd", kind="compute_cluster", count=0, max_count=1, shape=amd, image=_listed(amd=True))
    workspace.apply()
    pools = workspace.output()["pools"]
    chosen = {one["listingResourceId"]: one["listingResourceVersion"] for one in cloud.standing(SUBSCRIPTIONS)}
    versions = {pool: chosen[pools[pool]["image_id"]] for pool in pools}
    assert "GPU-550-CUDA-12.4-2025.07.19" in versions["a"]
    assert versions["b"] == versions["a"]
    assert "AMD-ROCM-632" in versions["amd"]
    assert len(chosen) == 2
    assert _launch_details(cloud, "a")["sourceDetails"]["imageId"] == pools["a"]["image_id"]
    assert workspace.plan().changes == []

    # What was chosen stays, also if the listing no longer has a version that fits.
    filters = _listed()
    filters["listing_filter"]["matching"] = ["withdrawn"]
    workspace.pool("a", image=filters)
    workspace.pool("b", image=filters)
    assert workspace.plan().changes == []

    # The same version, specified in two ways, would be subscribed to twice, and one would cancel the other.
    workspace.pool("b", image=_listed("*-GPU-550-*"))
    assert "specify it in two ways" in workspace.plan(check=False).errors.replace("\n", " ")
    workspace.pool("b", image={"name": "Debian-13-local"})
    (named,) = [address for address, action in workspace.plan().changes if address == 'terraform_data.image["pool/b"]']
    assert named
    workspace.pool("b", image={"name": "Debian-11-local"})
    assert "No image Debian-11-local is offered for shape BM.GPU4.8 (pool/b)" in workspace.plan(check=False).errors


def test_a_custom_image_is_offered_for_another_shape(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.variables["images"]["controller"] = {"operating_system": "Oracle Linux", "version": "9"}
    workspace.apply()
    tenancy, (controller,) = cloud.credentials.tenancy, cloud.standing(INSTANCES, "demo")
    body = {"compartmentId": tenancy, "instanceId": controller["id"], "displayName": "ours"}
    image = cloud.client.call("POST", "/20160918/images", body=body).body["id"]
    cloud.wait("/20160918/images", image, "AVAILABLE")
    try:
        shape = f"/20160918/images/{image}/shapes/BM.GPU4.8"
        for pool in ("a", "b"):
            workspace.pool(
                pool,
                kind="compute_cluster",
                count=0,
                max_count=1,
                image={"ocid": image, "make_compatible": True},
            )
        made = f'oci_core_shape_management.this["{image}/BM.GPU4.8"]'
        assert (made, "create") in workspace.apply().changes
        assert cloud.client.call("GET", shape).body["shape"] == "BM.GPU4.8"
        assert workspace.plan().changes == []
        workspace.variables["pools"] = {}
        # It has the system of the controller and is the youngest with it, and is taken by its name only.
        small = {"shape": "VM.Standard.E5.Flex", "ocpus": 1, "memory_gb": 8, "rdma": False, "rdma_plugins": []}
        for pool, wanted in {
            "system": {"operating_system": "Oracle Linux", "version": "9"},
            "name": {"name": "ours", "operating_system": "Oracle Linux"},
        }.items():
            workspace.pool(pool, kind="instances", count=0, max_count=1, node_names=[], image=wanted, **small)
        assert (made, "delete") in workspace.apply().changes
        chosen = {name: pool["image_id"] for name, pool in workspace.output()["pools"].items()}
        assert chosen == {"system": cloud.image("Oracle-Linux-9.7-2026.06.15-0"), "name": image}

        # A shape with GPUs needs another image of the same system; that of a cluster from before variants stays.
        def system(variant: str | None, **shape: Any) -> str:
            known = {"operating_system": "Oracle Linux", "version": "9", "variant": variant}
            workspace.pool("system", node_names=[], image=known, **shape)
            workspace.apply()
            return str(workspace.output()["pools"]["system"]["image_id"])

        del workspace.variables["pools"]["name"]
        assert system("x86_64") == chosen["system"]
        gpu = {"shape": "BM.GPU.A10.4", "ocpus": None, "memory_gb": None}
        assert system("x86_64 nvidia", **gpu) == cloud.image("Oracle-Linux-9.7-Gen2-GPU-2026.06.15-0")
    finally:
        cloud.client.call("DELETE", f"/20160918/images/{image}")
