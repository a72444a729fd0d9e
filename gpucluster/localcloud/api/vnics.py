"""Resources that are created with an instance: VNICs, boot volumes, their attachments, addresses."""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    filtered,
    incorrect_state,
    not_found,
    page,
    show,
)


def _check_groups(cloud: CloudState, _vnic: Resource, changes: Json) -> Json:
    for group in changes.get("nsgIds") or []:
        cloud.related("networksecuritygroup", group)
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
    check_delete=_not_attached,
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
