"""The production root, the stand-in provider and the local cloud's API together; only the instances are none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucluster.formats import CLUSTER_FORMAT
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

CLUSTER_NETWORK = 'module.pool["compute"].oci_core_cluster_network.this[0]'
CONFIGURATION = 'module.pool["compute"].oci_core_instance_configuration.this[0]'
CONTROLLER = "module.controller.oci_core_instance.this"
CLUSTER_NETWORKS = "/20160918/clusterNetworks"
INSTANCES = "/20160918/instances"


def _pool_instance(pool: str, number: int) -> str:
    return f'module.pool["{pool}"].module.instance["{pool}-{number}"].oci_core_instance.this'


def _names(cloud: LocalCloud, cluster: str) -> list[str]:
    return sorted(item["displayName"] for item in cloud.standing(INSTANCES, cluster))


def _provider_leftovers(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in Path(workspace.environment["TMPDIR"]).glob("gpucluster-provider-*"))


def _await_no_more_leftovers_than(workspace: Workspace, before: list[str]) -> None:
    # The provider of an earlier Terraform may have been about to remove its own.
    wait_for("the provider has removed its folder", lambda: set(_provider_leftovers(workspace)) <= set(before))


def _only_one_is_left(address: str, output: str) -> bool:
    """Whether an apply has created all that it planned, and just the one at this address is still being created."""
    planned = set(re.findall(r"# (\S+) will be created", output.partition("\nPlan: ")[0]))
    return planned - set(re.findall(r"(\S+): Creation complete", output)) == {address}


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def test_a_cluster_is_made_kept_scaled_and_removed(workspace: Workspace, cloud: LocalCloud) -> None:
    leftovers = _provider_leftovers(workspace)
    workspace.pool("compute")
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    cpu = {"shape": "VM.Standard.E5.Flex", "ocpus": 2, "memory_gb": 16, "rdma": False, "rdma_plugins": []}
    workspace.pool("cpu", kind="instances", **cpu)
    workspace.apply()

    cluster = workspace.output()
    pools = cluster.pop("pools")
    assert cluster["contract_version"] == CLUSTER_FORMAT
    assert set(cluster) == {
        "contract_version", "name", "region", "compartment_id", "availability_domain", "vcn_id", "private_subnet_id",
        "public_subnet_id", "private_subnet_domain_name", "controller", "login", "home", "shares", "bastion_id",
        "dynamic_group_id", "elastic_compartment_id", "standby", "state_volume_id",
    }  # fmt: skip
    assert cluster["private_subnet_domain_name"] == "private.demo.oraclevcn.com"
    assert cluster["controller"]["name"] == "demo-controller"
    assert cluster["controller"]["private_ip"].startswith("10.0.0.")
    # The host is on the VCN's bridge: the private address is the way in.
    assert cluster["controller"]["public_ip"] == cluster["controller"]["private_ip"]
    assert cluster["home"]["mount_target_ip"].startswith("10.0.1.")
    assert cluster["home"]["export_path"] == "/mnt/home"
    assert [item["name"] for item in pools["cpu"]["instances"]] == ["cpu-1", "cpu-2"]
    assert all(item["private_ip"].startswith("10.0.1.") for item in pools["cpu"]["instances"])
    images = {pool.pop("image_id") for pool in pools.values()}
    assert len(images) == 1
    assert images.pop().startswith("ocid1.image.")
    assert {(pool["availability_domain"], pool["baked_image_id"]) for pool in pools.values()} == {
        ("local:LOCAL-1-AD-1", None)
    }
    given = {name: [key for key in pool if key.endswith("_id") and pool[key]] for name, pool in pools.items()}
    assert {name: sorted(keys) for name, keys in given.items()} == {
        "compute": ["cluster_network_id", "instance_configuration_id"],
        "burst": ["compute_cluster_id", "instance_configuration_id"],
        "cpu": [],
    }
    assert pools["compute"]["instances"] == []
    assert len(_names(cloud, "demo")) == 1 + 2 + 1 + 2
    network = pools["compute"]["cluster_network_id"]
    cloud.wait(CLUSTER_NETWORKS, network, "RUNNING")
    assert workspace.plan().changes == []

    for size in (3, 2):
        workspace.pool("compute", count=size, max_count=size)
        workspace.pool("cpu", count=size, max_count=size)
        assert [change for change in workspace.apply().changes if "terraform_data" not in change[0]] == [
            (CLUSTER_NETWORK, "update"),
            (_pool_instance("cpu", 3), "create" if size > 2 else "delete"),
        ]
        cloud.wait(CLUSTER_NETWORKS, network, "RUNNING")
        assert len(_names(cloud, "demo")) == 2 + 2 * size
        assert workspace.plan().changes == []

    # The key of another operator affects new nodes, and replaces none.
    before = _names(cloud, "demo")
    workspace.variables["ssh_authorized_keys"] = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 successor"]
    assert workspace.apply().changes == [
        ('module.pool["burst"].oci_core_instance_configuration.this[0]', "replace"),
        (CLUSTER_NETWORK, "update"),
        (CONFIGURATION, "replace"),
    ]
    assert _names(cloud, "demo") == before
    assert len(cloud.standing("/20160918/instanceConfigurations", "demo")) == 2
    assert workspace.plan().changes == []

    workspace.destroy()
    assert cloud.remains() == {}
    _await_no_more_leftovers_than(workspace, leftovers)


def test_only_ssh_from_named_blocks_comes_in(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.run("apply", "-auto-approve", "-input=false", "-target=module.network")
    lists = {item["displayName"]: item for item in cloud.standing("/20160918/securityLists", "demo")}
    opened = {
        name: sorted(
            (
                rule["source"],
                rule["protocol"],
                json.dumps(rule.get("tcpOptions") or rule.get("icmpOptions") or {}, sort_keys=True),
            )
            for rule in item["ingressSecurityRules"]
        )
        for name, item in lists.items()
    }
    ssh = '{"destinationPortRange": {"max": 22, "min": 22}}'
    too_big = '{"code": 4, "type": 3}'
    inside = [("0.0.0.0/0", "1", too_big), ("10.0.0.0/16", "all", "{}")]
    assert opened == {
        "demo-private": inside,
        "demo-public": [*inside, ("198.51.100.7/32", "6", ssh), ("203.0.113.0/24", "6", ssh)],
    }
    # No subnet uses the VCN's default list, which allows SSH from everywhere.
    ids = {item["id"] for item in lists.values()}
    subnets = cloud.standing("/20160918/subnets", "demo")
    assert len(subnets) == 2
    assert all(set(subnet["securityListIds"]) <= ids for subnet in subnets)
    private = next(item for item in subnets if item["displayName"] == "demo-private")
    assert private["prohibitPublicIpOnVnic"] is True


def test_a_newer_image_replaces_nothing_and_another_image_is_applied(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.apply()
    (controller,) = cloud.standing(INSTANCES, "demo")
    tenancy = cloud.credentials.tenancy
    body = {"compartmentId": tenancy, "instanceId": controller["id"], "displayName": "newer"}
    newer = cloud.client.call("POST", "/20160918/images", body=body).body
    cloud.wait("/20160918/images", newer["id"], "AVAILABLE")
    try:
        system = {"operatingSystem": "Debian", "operatingSystemVersion": "13", "sortBy": "TIMECREATED"}
        offered = next(cloud.client.items("/20160918/images", {"compartmentId": tenancy, **system}))
        assert offered["id"] == newer["id"] != controller["imageId"]
        assert workspace.plan().changes == []

        workspace.variables["images"]["controller"] = {"operating_system": "Plan 9", "version": "4"}
        refused = workspace.plan(check=False)
        assert "No image of Plan 9 4 is offered for shape VM.Standard.E5.Flex (controller)" in refused.errors

        workspace.variables["images"]["controller"] = {"ocid": newer["id"]}
        # In place for Terraform: OCI replaces the boot volume. `lifecycle.resize` treats it as a replacement.
        assert (CONTROLLER, "update") in workspace.plan().changes
    finally:
        cloud.client.call("DELETE", f"/20160918/images/{newer['id']}")


def test_what_was_removed_behind_terraforms_back_is_made_again(workspace: Workspace, cloud: LocalCloud) -> None:
    workspace.apply()
    (controller,) = cloud.standing(INSTANCES, "demo")
    (gateway,) = cloud.standing("/20160918/internetGateways", "demo")
    cloud.client.call("DELETE", f"{INSTANCES}/{controller['id']}")
    cloud.wait(INSTANCES, controller["id"], "TERMINATED")
    cloud.client.call("PUT", f"/20160918/internetGateways/{gateway['id']}", body={"isEnabled": False})
    assert workspace.plan().changes == [
        (CONTROLLER, "create"),
        ("module.network.oci_core_internet_gateway.this[0]", "update"),
    ]
    workspace.apply()
    assert workspace.plan().changes == []
    fresh = workspace.output()["controller"]["id"]
    assert fresh != controller["id"]

    # Existing resources can be imported; an import lacks only arguments that no API returns.
    workspace.run("state", "rm", CONTROLLER)
    workspace.run("import", "-input=false", CONTROLLER, fresh)
    assert workspace.apply().changes == [(CONTROLLER, "update")]
    assert workspace.plan().changes == []


def test_a_refusal_is_told_and_the_next_apply_goes_on(workspace: Workspace, cloud: LocalCloud) -> None:
    busy = {"operation": "CreateSubnet", "status": 429, "code": "TooManyRequests", "message": "Slow down.", "times": 2}
    full = {"operation": "LaunchInstance", "status": 500, "code": "InternalError", "message": "Out of host capacity."}
    cloud.faults(busy, full)
    failed = workspace.apply(check=False)
    assert failed.code == 1
    assert failed.errors.count("Operation Name:") == 1
    for words in (
        "500-InternalError, Out of host capacity.",
        "Service: Core Instance",
        "Operation Name: LaunchInstance",
        "OPC request ID: ",
    ):
        assert words in failed.errors
    cloud.faults()
    assert workspace.apply().changes == [(CONTROLLER, "create")]
    assert workspace.plan().changes == []


def test_wrong_credentials_are_named(workspace: Workspace, cloud: LocalCloud, tmp_path: Path) -> None:
    workspace.environment = {**workspace.environment, "OCI_FINGERPRINT": "00:00"}
    refused = workspace.plan(check=False)
    assert "401-NotAuthenticated" in refused.errors
    assert "Operation Name: ListAvailabilityDomains" in refused.errors
    workspace.environment = {**workspace.environment, "OCI_PRIVATE_KEY_PATH": str(tmp_path / "none.pem")}
    assert "none.pem can't be read" in workspace.plan(check=False).errors
    workspace.environment = {name: value for name, value in workspace.environment.items() if name != "OCI_USER_OCID"}
    assert "the environment lacks OCI_USER_OCID" in workspace.plan(check=False).errors
    workspace.environment = {
        **workspace.environment,
        **cloud.environment,
        "GPUCLUSTER_LOCAL_ENDPOINT": "http://[::1]:9",
    }
    assert "the local cloud does not answer at http://[::1]:9" in workspace.plan(check=False).errors


def test_an_unknown_availability_domain_is_refused_with_those_that_exist(workspace: Workspace) -> None:
    workspace.variables["availability_domain"] = "AD-9"
    assert "AD-9 is not one of this region: local:LOCAL-1-AD-1" in workspace.plan(check=False).errors.replace("\n", " ")
    workspace.variables["availability_domain"] = "local:LOCAL-1-AD-1"
    workspace.pool("burst", kind="compute_cluster", count=0, max_count=1, availability_domain="AD-8")
    assert "AD-8 is not one of this region" in workspace.plan(check=False).errors.replace("\n", " ")
    workspace.pool("burst", availability_domain="local:LOCAL-1-AD-2")
    workspace.plan()


def test_the_provider_ends_with_a_terraform_that_is_killed(workspace: Workspace, cloud: LocalCloud) -> None:
    """The resource that it was creating is in no state: `test_adoption_live.py` has what gpucluster does then."""
    # The instance exists, but the provider gets no answer when it asks for it. After an error it would give up.
    cloud.faults({"operation": "GetInstance", "until_removed": True})
    workspace.write()
    leftovers = _provider_leftovers(workspace)
    output = workspace.folder / "output"
    with output.open("w") as stream:
        running = subprocess.Popen(
            ["terraform", "apply", "-auto-approve", "-input=false", "-no-color"],
            cwd=workspace.folder,
            env=dict(workspace.environment),
            stdout=stream,
            stderr=subprocess.DEVNULL,
        )
    try:
        # Nothing else is being created then: it would be in no state as well, and hold the subnet.
        alone = lambda: _only_one_is_left(CONTROLLER, output.read_text())  # noqa: E731
        wait_for("all is created but the instance", alone, state=output.read_text)
        wait_for("the instance exists", lambda: cloud.standing(INSTANCES, "demo"), state=output.read_text)
        (lost,) = cloud.standing(INSTANCES, "demo")
        plugins = _children(running.pid)
        assert plugins
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    wait_for("the provider has ended", lambda: not any(Path(f"/proc/{pid}").exists() for pid in plugins))
    _await_no_more_leftovers_than(workspace, leftovers)

    cloud.faults()
    cloud.client.call("DELETE", f"{INSTANCES}/{lost['id']}")
    cloud.wait(INSTANCES, lost["id"], "TERMINATED")
    workspace.destroy()
    assert cloud.remains() == {}


def test_elastic_nodes_boot_from_the_baked_image_and_permanent_ones_do_not(
    workspace: Workspace, cloud: LocalCloud
) -> None:
    # Another image than the pool's, as a baked one is.
    domain, baked = "local:LOCAL-1-AD-2", cloud.image("Canonical-Ubuntu-24.04-2026.06.29-0")
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4, availability_domain=domain)
    workspace.apply()
    before = workspace.output()["pools"]["burst"]
    assert (before["availability_domain"], before["baked_image_id"]) == (domain, None)

    workspace.pool("burst", baked_image_id=baked)
    configuration = 'module.pool["burst"].oci_core_instance_configuration.this[0]'
    assert workspace.apply().changes == [(configuration, "replace")]
    after = workspace.output()["pools"]["burst"]
    assert (after["baked_image_id"], after["image_id"]) == (baked, before["image_id"])
    (kept,) = cloud.standing("/20160918/instanceConfigurations", "demo")
    found = cloud.client.call("GET", f"/20160918/instanceConfigurations/{kept['id']}").body
    launch = found["instanceDetails"]["launchDetails"]
    assert (launch["sourceDetails"]["imageId"], launch["availabilityDomain"]) == (baked, domain)
    assert launch["freeformTags"] == {"gpucluster": "demo", "role": "compute", "pool": "burst"}
    (node,) = [item for item in cloud.standing(INSTANCES, "demo") if item["displayName"] == "burst-1"]
    assert (node["imageId"], node["availabilityDomain"]) == (before["image_id"], domain)
    assert workspace.plan().changes == []


def test_two_clusters_of_the_same_spec_stay_two(new_workspace: Callable[[str], Workspace], cloud: LocalCloud) -> None:
    """A retry token belongs to one working copy."""
    one, two = new_workspace("one"), new_workspace("two")
    two.variables = {**one.variables, "network": {**one.variables["network"]}}
    for workspace in (one, two):
        workspace.run(
            "apply", "-auto-approve", "-input=false", "-target=module.home[0].oci_file_storage_file_system.this"
        )
    assert len(cloud.standing("/20171215/fileSystems", "one")) == 2


def test_init_is_offline_and_the_root_is_valid(workspace: Workspace) -> None:
    workspace.run("validate")
    again = workspace.run("init", "-input=false", "-lockfile=readonly")
    assert "Warning" not in again.text
    lock = (workspace.folder / ".terraform.lock.hcl").read_text()
    assert lock.count("h1:") == 1, "more than one, and another machine's package would be refused"
    program = next((workspace.folder / ".terraform" / "providers").glob("*/oracle/oci/*/*/terraform-provider-oci_v*"))
    assert program.parent.is_symlink()
    assert [path.name for path in program.parent.iterdir()] == [program.name]
    assert os.access(program, os.X_OK)
