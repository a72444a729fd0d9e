"""What an instance is told about itself: the documents `instance`, `host` and `vnics`, and how a path selects a part of
them.

Source of the members: Oracle's page "Getting Instance Metadata", and documents of instances that others published.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpucluster.localcloud.compute import capacity, placement
from gpucluster.localcloud.state.region import REGION, REGION_INFO
from gpucluster.localcloud.state.store import Json, Resource


def instance_document(instance: Resource, tenancy: str) -> Json:
    """The document of an instance. User data stays in base64, as it was sent."""
    body = instance.body
    domain = str(body["availabilityDomain"])
    shape_config = {name: value for name, value in (body.get("shapeConfig") or {}).items() if value is not None}
    return {
        "agentConfig": _agent(body.get("agentConfig") or {}),
        "availabilityDomain": domain,
        "canonicalRegionName": REGION,
        "compartmentId": body["compartmentId"],
        "definedTags": body.get("definedTags") or {},
        "displayName": body["displayName"],
        "faultDomain": body["faultDomain"],
        "freeformTags": body.get("freeformTags") or {},
        "hostname": instance.hidden["hostname"],
        "id": instance.id,
        "image": body["imageId"],
        "metadata": {**(body.get("metadata") or {}), **(body.get("extendedMetadata") or {})},
        "ociAdName": domain.rpartition(":")[2].lower(),
        "region": REGION,
        "regionInfo": dict(REGION_INFO),
        "shape": body["shape"],
        "shapeConfig": shape_config,
        "state": str(body["lifecycleState"]).replace("_", " ").title().replace(" ", ""),
        "tenantId": tenancy,
        "timeCreated": int(datetime.fromisoformat(body["timeCreated"]).timestamp() * 1000),
    }


def host_document(instance: Resource) -> Json:
    """The document of the host on which an instance runs. Sources of its members: Oracle's oci-dr-hpc-v2, and for the
    place in an RDMA network, which few hosts report, the labeler of oci-hpc-oke."""
    host = instance.hidden.get(capacity.HOST)
    if not host:
        return {}
    return {"id": host, **placement.document(instance.hidden.get(placement.PLACE) or {}, str(host))}


def _agent(config: Mapping[str, Any]) -> Json:
    """The members of an instance's agentConfig, which lose their `is` and `are` here."""
    return {
        "allPluginsDisabled": bool(config.get("areAllPluginsDisabled")),
        "managementDisabled": bool(config.get("isManagementDisabled")),
        "monitoringDisabled": bool(config.get("isMonitoringDisabled")),
        "pluginsConfig": list(config.get("pluginsConfig") or []),
    }


def vnic_documents(vnics: Sequence[tuple[Resource, Resource]], gateway: str) -> list[Json]:
    """The documents of an instance's VNICs.

    Args:
        vnics: each with its subnet, the primary one first.
        gateway: where an instance sends what leaves its subnet.
    """
    return [
        {
            "macAddr": vnic.body["macAddress"],
            "nicIndex": index,
            "privateIp": vnic.body["privateIp"],
            "subnetCidrBlock": str(ipaddress.IPv4Network(subnet.body["cidrBlock"])),
            "virtualRouterIp": gateway,
            "vlanTag": 0,
            "vnicId": vnic.id,
        }
        for index, (vnic, subnet) in enumerate(vnics)
    ]


def selected(document: Any, path: Sequence[str]) -> str | None:
    """The part of a document that a path names: a value as plain text, an object or a list as JSON; None if it has no
    such part."""
    value = document
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value if isinstance(value, str) else json.dumps(value, indent=2)
