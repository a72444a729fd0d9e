"""Further shares with the real Terraform, the stand-in provider and the local cloud's API: no host mounts them here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

FILE_SYSTEMS, MOUNT_TARGETS, EXPORTS = "/20171215/fileSystems", "/20171215/mountTargets", "/20171215/exports"
DATA: dict[str, Any] = {"export_path": "/data"}


def _names(cloud: LocalCloud, collection: str) -> list[str]:
    return sorted(item["displayName"] for item in cloud.standing(collection, "demo"))


def _access(cloud: LocalCloud) -> dict[str, str]:
    return {
        each["path"]: cloud.client.call("GET", f"{EXPORTS}/{each['id']}").body["exportOptions"][0]["access"]
        for each in cloud.standing(EXPORTS)
    }


def test_shares_come_beside_the_home_share_and_their_files_stay_with_another_mount_target(
    workspace: Workspace, cloud: LocalCloud
) -> None:
    workspace.variables["shares"] = {
        "data": DATA,
        "models": {"export_path": "/exports/models", "server": "10.0.1.99", "read_only": True},
    }
    workspace.apply()
    assert _names(cloud, FILE_SYSTEMS) == ["demo-data", "demo-home"]
    assert _names(cloud, MOUNT_TARGETS) == ["demo-home"]
    cluster = workspace.output()
    home, shares = cluster["home"], cluster["shares"]
    assert shares["data"]["mount_target_ip"] == home["mount_target_ip"]
    assert shares["data"]["file_system_id"] != home["file_system_id"]
    assert shares["models"] == {
        "file_system_id": None, "mount_target_ip": "10.0.1.99", "export_path": "/exports/models",
    }  # fmt: skip
    assert _access(cloud) == {"/mnt/home": "READ_WRITE", "/data": "READ_WRITE"}
    assert workspace.plan().changes == []

    workspace.variables["shares"]["data"] = {**DATA, "mount_target": "own"}
    workspace.apply()
    assert _names(cloud, MOUNT_TARGETS) == ["demo-data", "demo-home"]
    moved = workspace.output()["shares"]["data"]
    assert moved["file_system_id"] == shares["data"]["file_system_id"]
    assert moved["mount_target_ip"] not in ("", home["mount_target_ip"])
    assert workspace.plan().changes == []

    # Another cluster of the network reads it, as one that exists.
    workspace.variables["shares"] = {"data": workspace.variables["shares"]["data"]}
    workspace.variables["shares"]["seen"] = {
        "export_path": "/seen", "file_system_id": home["file_system_id"], "mount_target": "own", "read_only": True,
    }  # fmt: skip
    workspace.apply()
    assert _access(cloud)["/seen"] == "READ_ONLY"
    assert _names(cloud, FILE_SYSTEMS) == ["demo-data", "demo-home"]

    del workspace.variables["shares"]["seen"]
    del workspace.variables["shares"]["data"]
    removed = [address for address, action in workspace.plan().changes if action == "delete"]
    assert 'module.share["data"].oci_file_storage_file_system.this[0]' in removed
    workspace.destroy()
    assert cloud.remains() == {}


def test_a_mount_target_gets_its_throughput_after_it_was_made(workspace: Workspace, cloud: LocalCloud) -> None:
    def throughput() -> tuple[int, int, int]:
        (target,) = cloud.standing(MOUNT_TARGETS, "demo")
        found = cloud.client.call("GET", f"{MOUNT_TARGETS}/{target['id']}").body
        return found["requestedThroughput"], found["observedThroughput"], found["reservedStorageCapacity"]

    home = workspace.variables["home"]
    home["throughput_gbps"] = 20
    assert "created with 1 Gbps" in workspace.apply(check=False).errors
    home["throughput_gbps"] = None
    workspace.apply()
    assert throughput() == (1, 1, 0)
    home["throughput_gbps"] = 20
    assert workspace.apply().changes == [("module.home[0].oci_file_storage_mount_target.this", "update")]
    assert throughput() == (20, 20, 20_000)
    assert workspace.plan().changes == []
    home["throughput_gbps"] = 1
    workspace.apply()
    # Until the billing cycle ends, it is what it was.
    assert throughput() == (1, 20, 20_000)
    assert workspace.plan().changes == []
    home["throughput_gbps"] = None
    assert workspace.plan().changes == []
