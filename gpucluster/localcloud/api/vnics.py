"""Resources that are created with an instance: VNICs, boot volumes, their attachments, addresses; and the secondary
private addresses of VNICs, which can be moved.

Sources for secondary addresses: the SDK's `create_private_ip`, `update_private_ip` ("Move a secondary private IP to a
different VNIC in the same subnet"; "cannot be used with primary private IPs") and `delete_private_ip`. They end with
their VNIC, and the instance sets them up itself (docs: "Overview of IP Addresses"): no engine does anything here. Not
verified: the codes and the texts of the refusals, which are those of other invalid parameters.
"""

from __future__ import annotations

import time
from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import TAGS, ResourceKind
from gpucluster.localcloud.compute.addresses import take_private
from gpucluster.localcloud.compute.attachments import resized
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    conflict,
    filtered,
    incorrect_state,
    invalid,
    not_found,
    page,
    required,
    show,
)

# For each VNIC, beside the primary one (docs: "Overview of IP Addresses").
_MOST_SECONDARY = 31


def _check_groups(cloud: CloudState, _vnic: Resource, changes: Json) -> Json:
    for group in changes.get("nsgIds") or []:
        cloud.related("networksecuritygroup", group)
    return changes


def _check_size(cloud: CloudState, volume: Resource, changes: Json) -> Json:
    changes = resized(volume, changes)
    # The real provider reads the size from the volume; the stand-in has one call for an instance.
    for attachment in cloud.store.find("bootvolumeattachment", bootVolumeId=volume.id):
        instance = cloud.get("instance", attachment.body["instanceId"])
        instance.body["sourceDetails"] = {**instance.body["sourceDetails"], "bootVolumeSizeInGBs": changes["sizeInGBs"]}
        cloud.store.save(instance)
    return changes


def _not_attached(cloud: CloudState, volume: Resource) -> None:
    for attachment in cloud.store.find("bootvolumeattachment", bootVolumeId=volume.id):
        raise incorrect_state(f"Boot volume {volume.id} is attached to {attachment.body['instanceId']}")


VNIC = ResourceKind(
    "vnic", f"{CORE}/vnics", "Vnic", "Vnics", "vnicId", creatable=False, deletable=False,
    updatable=("hostnameLabel", "nsgIds", "skipSourceDestCheck", "securityAttributes"),
    check_update=_check_groups,
)  # fmt: skip
BOOT_VOLUME = ResourceKind(
    "bootvolume", f"{CORE}/bootVolumes", "BootVolume", "BootVolumes", "bootVolumeId", creatable=False,
    filters=("compartmentId", "availabilityDomain"), need_compartment=False,
    updatable=("sizeInGBs", "vpusPerGB", "isAutoTuneEnabled"),
    check_update=_check_size, check_delete=_not_attached,
)  # fmt: skip


def _list(cloud: CloudState, kind: str, names: tuple[str, ...], call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    exact = {name: call.query[name] for name in names if call.query.get(name)}
    # Detached attachments stay in the list for a while, as on OCI.
    return page(cloud.store.find(kind, gone=None, **exact), call)


def _get(cloud: CloudState, kind: str, param: str, call: Call) -> Reply:
    return show(cloud.get(kind, call.path[param]))


def _private_ips(cloud: CloudState, call: Call) -> Reply:
    return page(filtered(cloud.store.find("privateip"), call, ("subnetId", "vnicId", "ipAddress")), call)


def _create_private(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "vnicId")
    address, _, _ = cloud.create_once(call, lambda: (_add_private(cloud, body), ""))
    return created(address)


def _add_private(cloud: CloudState, body: Json) -> Resource:
    """Check a secondary address and write its row, in the caller's transaction."""
    vnic = cloud.related("vnic", body["vnicId"])
    subnet = cloud.related("subnet", vnic.body["subnetId"])
    if len(cloud.store.find("privateip", vnicId=vnic.id)) > _MOST_SECONDARY:
        raise invalid(f"VNIC {vnic.id} has {_MOST_SECONDARY} secondary private IPs, which is the limit")
    owner = str(vnic.hidden["instance"])
    address = take_private(cloud, subnet, owner, body.get("ipAddress"))
    return cloud.new(
        "privateip",
        {
            **{name: body[name] for name in (*TAGS, "hostnameLabel") if body.get(name)},
            "availabilityDomain": vnic.body.get("availabilityDomain"),
            "compartmentId": vnic.body["compartmentId"],
            "ipAddress": address,
            "isPrimary": False,
            "subnetId": subnet.id,
            "vnicId": vnic.id,
        },
        {"owner": owner},
    )


def _secondary(cloud: CloudState, call: Call) -> Resource:
    """The secondary address that a call names, in the caller's transaction."""
    address = cloud.live("privateip", call.path["privateIpId"])
    check_etag(call, address)
    if address.body["isPrimary"]:
        raise invalid(f"Private IP {address.id} is primary: this operation cannot be used with primary private IPs")
    return address


def _update_private(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        address = _secondary(cloud, call)
        address.body.update({name: body[name] for name in (*TAGS, "hostnameLabel") if name in body})
        if body.get("vnicId"):
            vnic = cloud.related("vnic", body["vnicId"])
            if vnic.body["subnetId"] != address.body["subnetId"]:
                raise invalid(f"VNIC {vnic.id} is not in the subnet of private IP {address.id}")
            others = [each for each in cloud.store.find("privateip", vnicId=vnic.id) if each.id != address.id]
            if len(others) > _MOST_SECONDARY:
                raise conflict(f"VNIC {vnic.id} has {_MOST_SECONDARY} secondary private IPs, which is the limit")
            owner = str(vnic.hidden["instance"])
            address.body["vnicId"], address.hidden["owner"] = vnic.id, owner
            cloud.store.give_address(str(address.body["subnetId"]), str(address.body["ipAddress"]), owner)
        cloud.store.save(address)
    return show(address)


def _delete_private(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        address = _secondary(cloud, call)
        cloud.store.release_address(str(address.body["subnetId"]), str(address.body["ipAddress"]))
        address.gone_at = time.time()
        cloud.store.save(address)
    return Reply(status=204)


def _public_ips(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    names = ("compartmentId", "scope", "lifetime", "availabilityDomain")
    return page(filtered(cloud.store.find("publicip"), call, names), call)


def _public_ip_by(cloud: CloudState, member: str, call: Call) -> Reply:
    value = call.body().get(member)
    for row in cloud.store.find("publicip"):
        if value is not None and row.body.get(member) == value:
            return show(row)
    raise not_found("public IP of", str(value))


def _ipv6(cloud: CloudState, call: Call) -> Reply:
    """An empty list: there is no IPv6 here, but the Terraform provider asks for every VNIC."""
    return Reply([])


def routes(cloud: CloudState) -> list[ApiRoute]:
    """VNICs, addresses, boot volumes and attachments."""
    ips, public = f"{CORE}/privateIps", f"{CORE}/publicIps"
    operations = [
        *(route for route in kinds.routes(cloud, VNIC) if route.operation != "ListVnics"),
        *kinds.routes(cloud, BOOT_VOLUME),
        ApiRoute("GET", ips, "ListPrivateIps", partial(_private_ips, cloud)),
        ApiRoute("GET", f"{ips}/{{privateIpId}}", "GetPrivateIp", partial(_get, cloud, "privateip", "privateIpId")),
        ApiRoute("POST", ips, "CreatePrivateIp", partial(_create_private, cloud)),
        ApiRoute("PUT", f"{ips}/{{privateIpId}}", "UpdatePrivateIp", partial(_update_private, cloud)),
        ApiRoute("DELETE", f"{ips}/{{privateIpId}}", "DeletePrivateIp", partial(_delete_private, cloud)),
        ApiRoute("GET", public, "ListPublicIps", partial(_public_ips, cloud)),
        ApiRoute("GET", f"{public}/{{publicIpId}}", "GetPublicIp", partial(_get, cloud, "publicip", "publicIpId")),
        ApiRoute(
            "POST",
            f"{public}/actions/getByPrivateIpId",
            "GetPublicIpByPrivateIpId",
            partial(_public_ip_by, cloud, "privateIpId"),
        ),
        ApiRoute(
            "POST",
            f"{public}/actions/getByIpAddress",
            "GetPublicIpByIpAddress",
            partial(_public_ip_by, cloud, "ipAddress"),
        ),
        ApiRoute("GET", f"{CORE}/ipv6", "ListIpv6s", partial(_ipv6, cloud)),
    ]
    attachments = (
        ("vnicattachment", "vnicAttachments", "VnicAttachment",
         ("compartmentId", "instanceId", "vnicId", "availabilityDomain")),
        ("bootvolumeattachment", "bootVolumeAttachments", "BootVolumeAttachment",
         ("compartmentId", "instanceId", "bootVolumeId", "availabilityDomain")),
    )  # fmt: skip
    for kind, collection, noun, names in attachments:
        param = f"{noun[0].lower()}{noun[1:]}Id"
        one = f"{CORE}/{collection}/{{{param}}}"
        operations += [
            ApiRoute("GET", f"{CORE}/{collection}", f"List{noun}s", partial(_list, cloud, kind, names)),
            ApiRoute("GET", one, f"Get{noun}", partial(_get, cloud, kind, param)),
        ]
    return operations
