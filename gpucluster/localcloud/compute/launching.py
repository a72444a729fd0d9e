"""The rows of a launch: instance, VNIC, addresses, boot volume and their attachments.

All rows are written in the transaction of the request, before the engine starts anything.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from gpucluster.localcloud.compute import addresses, capacity, machine_gpus, placement, preemptible, service_limits
from gpucluster.localcloud.compute.capacity import check_reserved
from gpucluster.localcloud.compute.image_catalogue import BASE_USER
from gpucluster.localcloud.compute.launch_images import choose_image
from gpucluster.localcloud.compute.memory_fabrics import DedicatedHost
from gpucluster.localcloud.compute.shape_config import check_platform, known_shape, shape_config
from gpucluster.localcloud.engine.protocol import mac_address
from gpucluster.localcloud.state.cloud import CloudState, note_state
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import short, slug
from gpucluster.localcloud.state.region import FAULT_DOMAINS, REGION, check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.tag_namespaces import check_namespaces
from gpucluster.localcloud.state.wire import invalid, required
from gpucluster.oci import tags

# Members of LaunchInstanceDetails that are copied to the instance (SDK: models.Instance).
_ECHOED = (
    "compartmentId", "availabilityDomain", "displayName", "shape", "metadata", "extendedMetadata", "ipxeScript",
    "platformConfig", "preemptibleInstanceConfig", "capacityReservationId", "dedicatedVmHostId", "freeformTags",
    "definedTags", "securityAttributes", "instanceConfigurationId", "clusterPlacementGroupId", "isAIEnterpriseEnabled",
    "placementConstraintDetails", "licensingConfigs",
)  # fmt: skip
_LAUNCH_OPTIONS: Json = {
    "bootVolumeType": "PARAVIRTUALIZED",
    "firmware": "UEFI_64",
    "networkType": "PARAVIRTUALIZED",
    "remoteDataVolumeType": "PARAVIRTUALIZED",
    "isPvEncryptionInTransitEnabled": False,
    "isConsistentVolumeNamingEnabled": True,
}
_AGENT: Json = {"isMonitoringDisabled": False, "isManagementDisabled": False, "areAllPluginsDisabled": False}
_MIN_BOOT_GB, _MAX_BOOT_GB, _DEFAULT_BOOT_GB = 50, 32768, 50
_VPUS, _DEFAULT_VPUS = range(10, 121, 10), 10
_LABEL = re.compile(r"[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def register(
    cloud: CloudState,
    details: Json,
    *,
    pool: str = "",
    compute_cluster: str = "",
    dedicated: DedicatedHost | None = None,
) -> tuple[Resource, str]:
    """Check a launch and write its rows. Returns the instance (PROVISIONING) and the id of its work request.

    Args:
        details: LaunchInstanceDetails of the request.
        pool: the instance pool or GPU memory cluster that launches it, if any.
        compute_cluster: the value of the header opc-compute-cluster-id; a compute cluster in the body wins.
        dedicated: the host that a GPU memory cluster has chosen.
    """
    required(details, "compartmentId", "availabilityDomain", "shape")
    cloud.compartment(details["compartmentId"])
    check_domain(details)
    _check_user_data(details.get("metadata") or {})
    if len(details.get("freeformTags") or {}) > tags.MOST:
        raise invalid(f"freeformTags has more than {tags.MOST} tags")
    check_namespaces(cloud, details.get("definedTags") or {})
    if dedicated is None and known_shape(details["shape"]).memory_fabric:
        # docs: "Creating GPU Memory Clusters"; the status of the refusal is not documented.
        raise invalid(f"Instances of shape {details['shape']} can't be launched directly; use a GPU memory cluster")
    image = choose_image(cloud, details)
    check_platform(details["shape"], details.get("platformConfig"))
    preemptible.check_launch(details)
    body = _body(cloud, details, image)
    cluster = _compute_cluster(cloud, details, compute_cluster)
    vnic_details: Json = {"subnetId": details.get("subnetId"), **(details.get("createVnicDetails") or {})}
    subnet = cloud.related("subnet", vnic_details["subnetId"])
    _check_admission(cloud, details, body)
    host = dedicated.id if dedicated else capacity.host_of_launch(cloud, body["shape"], body["availabilityDomain"])
    devices = machine_gpus.assign(cloud, body)
    body["shapeConfig"] = machine_gpus.describe(body["shapeConfig"], devices)
    instance = cloud.new("instance", body)
    hidden = _network_rows(cloud, instance, subnet, vnic_details, details.get("hostnameLabel"))
    hidden |= boot_rows(cloud, instance, details, image)
    hidden |= {
        "name": f"gpucluster-{slug(instance.body['displayName'])}-{short(instance.id)}",
        "image": image.id,
        "engine_image": image.hidden["engine_image"],
        "login_user": image.hidden.get("login_user", BASE_USER),
        "vcn": subnet.body["vcnId"],
        "pool": pool,
        "compute_cluster": cluster,
        machine_gpus.MEMBER: devices,
        capacity.HOST: host,
        placement.PLACE: dedicated.place if dedicated else _place(cloud, body["shape"], host, pool, cluster),
    }
    hidden["work_request"] = cloud.begin_work("LaunchInstance", "instance", instance)
    instance.hidden = hidden
    note_state(instance)
    cloud.store.save(instance)
    return instance, hidden["work_request"]


def _place(cloud: CloudState, shape: str, host: str, pool: str, compute_cluster: str) -> Json:
    return placement.of_launch(cloud, shape, host) if _has_rdma(cloud, pool, compute_cluster) else {}


def _has_rdma(cloud: CloudState, pool: str, compute_cluster: str) -> bool:
    """Whether an instance is in an RDMA network: its own compute cluster, or the cluster network of its pool."""
    row = cloud.store.get("instancepool", pool) if pool else None
    return bool(compute_cluster or (row and row.hidden.get("cluster_network")))


def _check_admission(cloud: CloudState, details: Json, body: Json) -> None:
    """Check limits first, then capacity, in the order of OCI."""
    usage = service_limits.usage_of(known_shape(body["shape"]), body["shapeConfig"], _boot_gb(body["sourceDetails"]))
    service_limits.check(cloud, usage, body["availabilityDomain"])
    check_reserved(cloud, details)
    capacity.check_host_free(cloud, body["shape"], body["availabilityDomain"])


def _check_user_data(metadata: Json) -> None:
    """Check that metadata.user_data is base64 (docs: LaunchInstanceDetails.metadata)."""
    try:
        base64.b64decode(str(metadata.get("user_data") or ""), validate=True)
    except binascii.Error as error:
        raise invalid(f"metadata.user_data is not valid base64: {error}") from error


def _body(cloud: CloudState, details: Json, image: Resource) -> Json:
    source: Json = {"bootVolumeVpusPerGB": _DEFAULT_VPUS, **(details.get("sourceDetails") or {}), "sourceType": "image"}
    source.pop("instanceSourceImageFilterDetails", None)
    source["imageId"] = image.id
    agent: Json = {**_AGENT, **(details.get("agentConfig") or {})}
    agent.setdefault("pluginsConfig", [])
    number = cloud.store.count("instance", {}, gone=None)
    return {
        "metadata": {},
        "extendedMetadata": {},
        "securityAttributes": {},
        **{name: details[name] for name in _ECHOED if name in details},
        "faultDomain": details.get("faultDomain") or FAULT_DOMAINS[number % len(FAULT_DOMAINS)],
        "region": REGION,
        "imageId": image.id,
        "image": image.id,
        "sourceDetails": source,
        "launchMode": "NATIVE",
        "launchOptions": {**_LAUNCH_OPTIONS, **(details.get("launchOptions") or {})},
        "instanceOptions": {"areLegacyImdsEndpointsDisabled": False, **(details.get("instanceOptions") or {})},
        "availabilityConfig": {"recoveryAction": "RESTORE_INSTANCE", **(details.get("availabilityConfig") or {})},
        "agentConfig": agent,
        "shapeConfig": shape_config(details["shape"], details.get("shapeConfig") or {}),
        "isCrossNumaNode": False,
        "lifecycleState": LifecycleState.PROVISIONING,
    }


def _compute_cluster(cloud: CloudState, details: Json, header: str) -> str:
    """The compute cluster that the body, placementConstraintDetails or the header names; empty if none."""
    placement: Json = details.get("placementConstraintDetails") or {}
    ocid = details.get("computeClusterId") or placement.get("computeClusterId") or header
    if not ocid:
        return ""
    cluster = cloud.related("computecluster", ocid)
    if cluster.body["compartmentId"] != details["compartmentId"]:
        raise invalid(f"Compute cluster {cluster.id} is in another compartment than the instance")
    if cluster.body["availabilityDomain"] != details["availabilityDomain"]:
        raise invalid(f"Compute cluster {cluster.id} is in another availability domain than the instance")
    return cluster.id


def _network_rows(
    cloud: CloudState, instance: Resource, subnet: Resource, vnic_details: Json, instance_label: str | None
) -> dict[str, Any]:
    label = vnic_details.get("hostnameLabel") or instance_label
    if label is not None:
        _check_label(cloud, subnet, label)
    public = bool(vnic_details.get("assignPublicIp", not subnet.body["prohibitPublicIpOnVnic"]))
    if public and subnet.body["prohibitPublicIpOnVnic"]:
        raise invalid(f"Public IPs are prohibited in subnet {subnet.id}")
    for group in vnic_details.get("nsgIds") or []:
        if cloud.related("networksecuritygroup", group).body["vcnId"] != subnet.body["vcnId"]:
            raise invalid(f"Network security group {group} is not in the VCN of subnet {subnet.id}")
    common = {
        "compartmentId": instance.body["compartmentId"],
        "availabilityDomain": instance.body["availabilityDomain"],
    }
    ip = addresses.take_private(cloud, subnet, instance.id, vnic_details.get("privateIp"))
    # The public address is the private one: this machine is on the VCN's bridge and reaches the instance there. An
    # address of the host would need a port of the host, and the host's own ssh daemon usually uses port 22.
    public_ip = ip if public else None
    vnic = cloud.new(
        "vnic",
        {
            **common,
            "displayName": vnic_details.get("displayName") or instance.body["displayName"],
            "freeformTags": vnic_details.get("freeformTags") or {},
            "definedTags": vnic_details.get("definedTags") or {},
            "securityAttributes": vnic_details.get("securityAttributes") or {},
            "hostnameLabel": label,
            "isPrimary": True,
            "lifecycleState": LifecycleState.PROVISIONING,
            "macAddress": mac_address(ip),
            "nsgIds": vnic_details.get("nsgIds") or [],
            "privateIp": ip,
            "publicIp": public_ip,
            "skipSourceDestCheck": bool(vnic_details.get("skipSourceDestCheck", False)),
            "subnetId": subnet.id,
            "ipv6Addresses": [],
        },
        {"instance": instance.id},
    )
    private = cloud.new(
        "privateip",
        {
            **common,
            "displayName": vnic.body["displayName"],
            "hostnameLabel": label,
            "ipAddress": ip,
            "isPrimary": True,
            "subnetId": subnet.id,
            "vnicId": vnic.id,
        },
        {"owner": instance.id},
    )
    attachment = cloud.new(
        "vnicattachment",
        {
            **common,
            "instanceId": instance.id,
            "lifecycleState": LifecycleState.ATTACHING,
            "nicIndex": 0,
            "subnetId": subnet.id,
            "vnicId": vnic.id,
            "vlanTag": 0,
        },
    )
    hidden = {
        "ip": ip,
        "hostname": (label or slug(instance.body["displayName"]) or "instance").lower(),
        "vnic": vnic.id,
        "private_ip": private.id,
        "vnic_attachment": attachment.id,
    }
    if public_ip is not None:
        hidden["public_ip_id"] = cloud.new(
            "publicip",
            {
                **common,
                "assignedEntityId": private.id,
                "assignedEntityType": "PRIVATE_IP",
                "ipAddress": public_ip,
                "lifecycleState": LifecycleState.ASSIGNED,
                "lifetime": "EPHEMERAL",
                "privateIpId": private.id,
                "scope": "AVAILABILITY_DOMAIN",
            },
        ).id
    return hidden


def _check_label(cloud: CloudState, subnet: Resource, label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise invalid(f"hostnameLabel {label} is not a valid host name (RFC 952 and 1123)")
    if not subnet.body.get("dnsLabel"):
        raise invalid(f"hostnameLabel {label} needs a subnet with a dnsLabel; {subnet.id} has none")
    # The label stays in use while its instance is being terminated.
    for vnic in cloud.store.labelled(subnet.id, label):
        raise invalid(f"hostnameLabel {label} is already in use by VNIC {vnic.id} in subnet {subnet.id}")


def _boot_gb(source: Json) -> int:
    size = int(source.get("bootVolumeSizeInGBs") or _DEFAULT_BOOT_GB)
    if not _MIN_BOOT_GB <= size <= _MAX_BOOT_GB:
        raise invalid(f"bootVolumeSizeInGBs {size} must be between {_MIN_BOOT_GB} and {_MAX_BOOT_GB}")
    return size


def _vpus(source: Json) -> int:
    vpus = int(source.get("bootVolumeVpusPerGB") or _DEFAULT_VPUS)
    if vpus not in _VPUS:
        raise invalid(f"bootVolumeVpusPerGB {vpus} must be 10, 20, 30 and so on up to 120")
    return vpus


def boot_rows(cloud: CloudState, instance: Resource, details: Json, image: Resource) -> dict[str, Any]:
    """Write the rows of a boot volume and its attachment. Returns what the instance keeps of them."""
    source: Json = instance.body["sourceDetails"]
    size = _boot_gb(source)
    common = {
        "compartmentId": instance.body["compartmentId"],
        "availabilityDomain": instance.body["availabilityDomain"],
    }
    name = f"{instance.body['displayName']} (Boot Volume)"
    volume = cloud.new(
        "bootvolume",
        {
            **common,
            "displayName": name,
            "imageId": image.id,
            "isHydrated": True,
            "isAutoTuneEnabled": False,
            "vpusPerGB": _vpus(source),
            "sizeInGBs": size,
            "sizeInMBs": size * 1024,
            "lifecycleState": LifecycleState.PROVISIONING,
        },
    )
    attachment = cloud.new(
        "bootvolumeattachment",
        {
            **common,
            "displayName": name,
            "bootVolumeId": volume.id,
            "instanceId": instance.id,
            "lifecycleState": LifecycleState.ATTACHING,
            "isPvEncryptionInTransitEnabled": bool(details.get("isPvEncryptionInTransitEnabled", False)),
        },
    )
    return {"boot_volume": volume.id, "boot_volume_attachment": attachment.id}
