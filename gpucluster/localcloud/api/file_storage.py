"""File storage: a file system is a directory of this machine, an export makes it visible to the instances of a VCN.

A new file system is in `<home>/filesystems/<id>`. With its first export it moves to `<home>/exports/<vcn>/<id>`, the
folder that the instances of that VCN see; it is renamed, so existing mounts continue to work. `index.json` in that
folder maps addresses and paths to directories. So a file system can be exported in one VCN at a time. A snapshot is a
copy in its `.snapshot`. An export allows no writes if all its options are READ_ONLY: which source an option is for is
not looked at. Where instances have the file system mounted, they may write as long as one of its exports allows it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute import addresses
from gpucluster.localcloud.state.cloud import CloudState, ensure_private, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import new_ocid, short
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    FILE_STORAGE,
    ApiError,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    conflict,
    filtered,
    invalid,
    page,
    show,
)
from gpucluster.paths import write_private

_ACTIVE: dict[str, Any] = {
    "initial": LifecycleState.CREATING,
    "ready": LifecycleState.ACTIVE,
    "ending": LifecycleState.DELETING,
    "gone": LifecycleState.DELETED,
}
# SDK: models.ClientOptions
_OPTION: Json = {
    "source": "0.0.0.0/0",
    "requirePrivilegedSourcePort": True,
    "access": "READ_WRITE",
    "identitySquash": "ROOT",
    "anonymousUid": 65534,
    "anonymousGid": 65534,
    "isAnonymousAccessAllowed": False,
    "allowedAuth": ["SYS"],
}
# The options of an export that was created without options (docs: NFS Export Options).
_OPEN: Json = {"requirePrivilegedSourcePort": False, "identitySquash": "NONE"}


# Throughput of mount targets in Gbps (docs: Updating Mount Target Performance). Above the first they are high
# performance ones, billed in cycles of 30 days from the upgrade on.
_STANDARD_GBPS = 1
_HIGH_GBPS = (20, 40, 80)
_CYCLE_S = 30 * 24 * 3600.0
# Reserved capacity in GB for each Gbps of a high performance mount target (terraform-provider-oci: its test reads 20000
# for 20 Gbps, and 0 for a standard one).
_RESERVED_GB = 1000

_SNAPSHOTS = ".snapshot"
_SNAPSHOT_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9_.:@-]{1,255}")


def data_dir(cloud: CloudState, file_system: Resource) -> Path:
    """The current directory of a file system."""
    vcn = file_system.hidden.get("vcn")
    parent = cloud.exports_dir(vcn) if vcn else ensure_private(cloud.home / "filesystems")
    return parent / short(file_system.id)


def _make_file_system(cloud: CloudState, file_system: Resource) -> None:
    # The top directory of a new file system belongs to root and is readable by all, as on OCI.
    path = data_dir(cloud, file_system)
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _file_system_unused(cloud: CloudState, file_system: Resource) -> None:
    for export in cloud.store.find("export", fileSystemId=file_system.id):
        raise conflict(f"The file system {file_system.id} is referenced by the export {export.id}; delete that first")


def _remove_file_system(cloud: CloudState, file_system: Resource) -> None:
    path = data_dir(cloud, file_system)
    if path.exists():
        shutil.rmtree(path)
    vcn = cloud.store.get("vcn", file_system.hidden.get("vcn") or "")
    if vcn is not None and vcn.gone_at:
        cloud.drop_exports_dir(vcn.id)
    # The snapshots are deleted with it (docs: Deleting a File System).
    for snapshot in cloud.store.find("snapshot", fileSystemId=file_system.id):
        cloud.set_state("snapshot", snapshot.id, LifecycleState.DELETED, gone=True)


def _prepare_mount_target(cloud: CloudState, body: Json) -> Json:
    # SDK: CreateMountTargetDetails.requested_throughput
    if body["requestedThroughput"] != _STANDARD_GBPS:
        raise invalid(f"A mount target is created with {_STANDARD_GBPS} Gbps: upgrade its shape afterwards")
    subnet = cloud.related("subnet", body["subnetId"])
    ocid = new_ocid("mounttarget")
    ip = addresses.take_private(cloud, subnet, ocid, body.pop("ipAddress", None))
    common = {"compartmentId": body["compartmentId"], "availabilityDomain": body["availabilityDomain"]}
    private = cloud.new(
        "privateip",
        {
            **common,
            "displayName": body.get("displayName", "mount target"),
            "hostnameLabel": body.get("hostnameLabel"),
            "ipAddress": ip,
            "isPrimary": True,
            "subnetId": subnet.id,
            "vnicId": new_ocid("vnic"),
        },
        {"owner": ocid},
    )
    export_set = cloud.new(
        "exportset",
        {
            **common,
            "displayName": f"{body.get('displayName', 'mount target')} - export set",
            "lifecycleState": LifecycleState.ACTIVE,
            "vcnId": subnet.body["vcnId"],
            "maxFsStatBytes": 2**63 - 1,
            "maxFsStatFiles": 2**63 - 1,
        },
        {"ip": ip},
    )
    return {
        **body,
        "id": ocid,
        "exportSetId": export_set.id,
        "privateIpIds": [private.id],
        "mountTargetIpv6Ids": [],
        "lifecycleDetails": "",
        **_billed(_STANDARD_GBPS),
    }


def _billed(gbps: int) -> Json:
    """The members of a mount target that follow from its throughput."""
    high = gbps > _STANDARD_GBPS
    return {"observedThroughput": gbps, "reservedStorageCapacity": gbps * _RESERVED_GB if high else 0}


def _upgrade(cloud: CloudState, call: Call) -> Reply:
    """At once; the billing cycle begins."""
    gbps = call.body().get("requestedThroughput")
    with cloud.store.transaction():
        target = cloud.live(MOUNT_TARGET.name, call.path["mountTargetId"])
        check_etag(call, target)
        if gbps not in _HIGH_GBPS or gbps <= target.body["observedThroughput"]:
            raise invalid(
                f"requestedThroughput must be one of {', '.join(map(str, _HIGH_GBPS))}, and more than "
                f"{target.body['observedThroughput']}"
            )
        end = timestamp(time.time() + _CYCLE_S)
        target.body |= {"requestedThroughput": gbps, **_billed(gbps), "timeBillingCycleEnd": end}
        cloud.store.save(target)
    return show(target)


def _downgrade(cloud: CloudState, call: Call) -> Reply:
    """Schedule it for the end of the billing cycle. The local cloud has no such end: what is billed stays as it is."""
    gbps = call.body().get("requestedThroughput")
    with cloud.store.transaction():
        target = cloud.live(MOUNT_TARGET.name, call.path["mountTargetId"])
        check_etag(call, target)
        if gbps not in (_STANDARD_GBPS, *_HIGH_GBPS) or gbps >= target.body["observedThroughput"]:
            raise invalid(f"requestedThroughput must be less than {target.body['observedThroughput']}")
        target.body["requestedThroughput"] = gbps
        cloud.store.save(target)
    return show(target)


def _cancel_downgrade(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        target = cloud.live(MOUNT_TARGET.name, call.path["mountTargetId"])
        check_etag(call, target)
        if target.body["requestedThroughput"] >= target.body["observedThroughput"]:
            raise conflict(f"No downgrade of {target.id} is scheduled")
        target.body["requestedThroughput"] = target.body["observedThroughput"]
        cloud.store.save(target)
    return show(target)


def _remove_mount_target(cloud: CloudState, target: Resource) -> None:
    """Remove the exports, the export set and the address of a mount target (docs: Deleting a Mount Target).

    The address is released with the VNIC, which a fault can delay.
    """
    for export in cloud.store.find("export", exportSetId=target.body["exportSetId"]):
        kinds.remove(cloud, EXPORT, export.id)
    with cloud.store.transaction():
        cloud.set_state("exportset", target.body["exportSetId"], LifecycleState.DELETED, gone=True)
    effect = cloud.faults.release_vnic({"display_name": (target.body["displayName"],)})
    if effect.waits:
        cloud.submit(f"VNIC of {target.id}", partial(addresses.release, cloud, target.id), effect.delay, effect)
    else:
        addresses.release(cloud, target.id)


def _elements(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _prepare_export(cloud: CloudState, body: Json) -> Json:
    path = str(body["path"])
    parts = _elements(path)
    if not path.startswith("/") or path != "/" + "/".join(parts) or {".", ".."} & set(parts):
        raise invalid(f"The export path {path} must be absolute, without . or .. or a slash at its end")
    export_set = cloud.related("exportset", body["exportSetId"])
    file_system = cloud.related("filesystem", body["fileSystemId"])
    for other in cloud.store.find("export", exportSetId=export_set.id):
        theirs = _elements(other.body["path"])
        if parts[: len(theirs)] == theirs or theirs[: len(parts)] == parts:
            raise conflict(f"The path {path} conflicts with the export {other.id} of path {other.body['path']}")
        if other.body["fileSystemId"] == file_system.id:
            raise conflict(f"The file system {file_system.id} is already in this export set: {other.id}")
    vcn = export_set.body["vcnId"]
    if file_system.hidden.get("vcn", vcn) != vcn and cloud.store.find("export", fileSystemId=file_system.id):
        raise ApiError(400, "LimitExceeded", f"The local cloud exports {file_system.id} in one VCN at a time")
    options = [{**_OPTION, **option} for option in body.get("exportOptions") or [_OPEN]]
    return {**body, "exportOptions": options}


def _update_export(_cloud: CloudState, _export: Resource, changes: Json) -> Json:
    if "exportOptions" in changes:
        changes["exportOptions"] = [{**_OPTION, **option} for option in changes["exportOptions"]]
    return changes


def _make_export(cloud: CloudState, export: Resource) -> None:
    vcn = cloud.get("exportset", export.body["exportSetId"]).body["vcnId"]
    move_into(cloud, export.body["fileSystemId"], vcn)
    cloud.set_state("export", export.id, LifecycleState.ACTIVE)
    publish(cloud, vcn)


def move_into(cloud: CloudState, file_system_id: str, vcn: str) -> None:
    """Move the directory of a file system to the folder that the instances of a VCN see."""
    with cloud.locked(file_system_id):
        file_system = cloud.get("filesystem", file_system_id)
        if file_system.hidden.get("vcn") == vcn:
            return
        source = data_dir(cloud, file_system)
        target = cloud.exports_dir(vcn) / source.name
        if source.exists():
            os.rename(source, target)
        file_system.hidden["vcn"] = vcn
        cloud.store.save(file_system)


def _remove_export(cloud: CloudState, export: Resource) -> None:
    export_set = cloud.get("exportset", export.body["exportSetId"])
    cloud.set_state("export", export.id, LifecycleState.DELETING)
    publish(cloud, export_set.body["vcnId"])


def _apply_access(cloud: CloudState, export: Resource) -> None:
    publish(cloud, cloud.get("exportset", export.body["exportSetId"]).body["vcnId"])
    exports = cloud.store.find("export", fileSystemId=export.body["fileSystemId"], lifecycleState=LifecycleState.ACTIVE)
    directory = data_dir(cloud, cloud.get("filesystem", export.body["fileSystemId"]))
    cloud.engine.set_writable(directory, writable=not all(map(_read_only, exports)))


def _read_only(export: Resource) -> bool:
    return all(option["access"] == "READ_ONLY" for option in export.body["exportOptions"])


def publish(cloud: CloudState, vcn: str) -> None:
    """Write the files of a VCN that list what its instances can mount.

    index.json: {address: {path: directory}} of its active exports; read-only.json: {address: [path]} of those that let
    no writes.
    """
    with cloud.locked(vcn):
        index: dict[str, dict[str, str]] = {}
        read_only: dict[str, list[str]] = {}
        for export_set in cloud.store.find("exportset", vcnId=vcn):
            for export in cloud.store.find("export", exportSetId=export_set.id, lifecycleState=LifecycleState.ACTIVE):
                paths = index.setdefault(export_set.hidden["ip"], {})
                paths[export.body["path"]] = short(export.body["fileSystemId"])
                if _read_only(export):
                    read_only.setdefault(export_set.hidden["ip"], []).append(export.body["path"])
        for name, content in (("read-only.json", read_only), ("index.json", index)):
            write_private(cloud.exports_dir(vcn) / name, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _prepare_snapshot(cloud: CloudState, body: Json) -> Json:
    file_system = cloud.related("filesystem", body["fileSystemId"])
    name = str(body["name"])
    if not _SNAPSHOT_NAME.fullmatch(name):
        raise invalid(f"The name {name} of the snapshot has characters that are not allowed")
    if cloud.store.find("snapshot", fileSystemId=file_system.id, name=name):
        raise conflict(f"The file system {file_system.id} has a snapshot {name} already")
    return body


def _snapshot_dir(cloud: CloudState, snapshot: Resource) -> Path:
    file_system = cloud.get("filesystem", snapshot.body["fileSystemId"])
    return data_dir(cloud, file_system) / _SNAPSHOTS / str(snapshot.body["name"])


def _make_snapshot(cloud: CloudState, snapshot: Resource) -> None:
    target = _snapshot_dir(cloud, snapshot)
    target.mkdir(parents=True)
    for path in target.parent.parent.iterdir():
        if path.name != _SNAPSHOTS:
            process.run(["cp", "--archive", "--reflink=auto", "--", str(path), str(target)])


def _remove_snapshot(cloud: CloudState, snapshot: Resource) -> None:
    shutil.rmtree(_snapshot_dir(cloud, snapshot), ignore_errors=True)


FILE_SYSTEM = ResourceKind(
    "filesystem", f"{FILE_STORAGE}/fileSystems", "FileSystem", "FileSystems", "fileSystemId",
    required=("compartmentId", "availabilityDomain"), zoned=True,
    fields=("availabilityDomain", "kmsKeyId", "filesystemSnapshotPolicyId"),
    defaults={"meteredBytes": 0, "isCloneParent": False, "isHydrated": True, "sourceDetails": {}, "isTargetable": True,
              "lifecycleDetails": "", "replicationSourceCount": 0},
    updatable=("kmsKeyId", "filesystemSnapshotPolicyId"),
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState", "id"),
    create_backing=_make_file_system, check_delete=_file_system_unused, remove_backing=_remove_file_system, **_ACTIVE,
)  # fmt: skip
MOUNT_TARGET = ResourceKind(
    "mounttarget", f"{FILE_STORAGE}/mountTargets", "MountTarget", "MountTargets", "mountTargetId",
    required=("compartmentId", "availabilityDomain", "subnetId"), zoned=True,
    fields=("availabilityDomain", "subnetId", "hostnameLabel", "ipAddress", "nsgIds", "idmapType",
            "securityAttributes", "requestedThroughput"),
    defaults={"nsgIds": [], "securityAttributes": {}, "requestedThroughput": _STANDARD_GBPS},
    updatable=("nsgIds", "idmapType", "securityAttributes"),
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState", "id", "exportSetId"),
    prepare=_prepare_mount_target, remove_backing=_remove_mount_target, **_ACTIVE,
)  # fmt: skip
EXPORT = ResourceKind(
    "export", f"{FILE_STORAGE}/exports", "Export", "Exports", "exportId",
    required=("exportSetId", "fileSystemId", "path"),
    fields=("exportSetId", "fileSystemId", "path", "exportOptions", "isIdmapGroupsForSysAuth"),
    defaults={"isIdmapGroupsForSysAuth": False}, updatable=("exportOptions", "isIdmapGroupsForSysAuth"),
    filters=("exportSetId", "fileSystemId", "lifecycleState", "id"), need_compartment=False,
    prepare=_prepare_export, create_backing=_make_export, check_update=_update_export, update_backing=_apply_access,
    remove_backing=_remove_export, **_ACTIVE,
)  # fmt: skip
EXPORT_SET = ResourceKind(
    "exportset", f"{FILE_STORAGE}/exportSets", "ExportSet", "ExportSets", "exportSetId",
    updatable=("maxFsStatBytes", "maxFsStatFiles"), creatable=False, deletable=False,
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState", "id"),
)  # fmt: skip
SNAPSHOT = ResourceKind(
    "snapshot", f"{FILE_STORAGE}/snapshots", "Snapshot", "Snapshots", "snapshotId",
    required=("fileSystemId", "name"), fields=("fileSystemId", "name", "expirationTime"),
    defaults={"snapshotType": "USER", "isCloneSource": False, "lifecycleDetails": ""}, updatable=("expirationTime",),
    filters=("fileSystemId", "lifecycleState", "id", "name"), need_compartment=False,
    prepare=_prepare_snapshot, create_backing=_make_snapshot, remove_backing=_remove_snapshot, **_ACTIVE,
)  # fmt: skip
KINDS = (FILE_SYSTEM, MOUNT_TARGET, EXPORT, EXPORT_SET, SNAPSHOT)


def _list_exports(cloud: CloudState, call: Call) -> Reply:
    if not any(call.query.get(name) for name in ("compartmentId", "exportSetId", "fileSystemId")):
        raise ApiError(400, "MissingParameter", "One of compartmentId, exportSetId and fileSystemId is required")
    rows = filtered(cloud.store.find("export"), call, EXPORT.filters)
    compartment = call.query.get("compartmentId")
    if compartment:
        rows = [
            row for row in rows if cloud.get("exportset", row.body["exportSetId"]).body["compartmentId"] == compartment
        ]
    return page(rows, call)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """File storage."""
    generic = [route for kind in KINDS for route in kinds.routes(cloud, kind) if route.operation != "ListExports"]
    actions = f"{MOUNT_TARGET.path}/{{mountTargetId}}/actions"
    changes = {
        "upgradeShape": ("UpgradeShapeMountTarget", _upgrade),
        "scheduleShapeDowngrade": ("ScheduleDowngradeShapeMountTarget", _downgrade),
        "cancelShapeDowngrade": ("CancelDowngradeShapeMountTarget", _cancel_downgrade),
    }
    return [
        *generic,
        ApiRoute("GET", EXPORT.path, "ListExports", partial(_list_exports, cloud)),
        *(
            ApiRoute("POST", f"{actions}/{action}", operation, partial(change, cloud))
            for action, (operation, change) in changes.items()
        ),
    ]
