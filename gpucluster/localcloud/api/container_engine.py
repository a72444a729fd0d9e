"""Kubernetes Engine (OKE): clusters, their add-ons, their kubeconfig, and the service's work requests.

A cluster is a row, an address of its endpoint's subnet, a certificate authority of its own, and a control plane of
Kubernetes (`kubernetes/control_plane.py`) where the engine runs instances in networks. An add-on is a row only.

Sources: the SDK's models for members and states; Oracle's pages "Creating a Cluster", "Upgrading Clusters to Newer
Kubernetes Versions", "Working with Cluster Add-ons" and "Working with Enhanced Clusters and Basic Clusters" for the
rules; oracle/oci 8.28.0 for what a client waits for.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import yaml

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.compute import addresses
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.kubernetes import certificates, control_plane, releases, tokens
from gpucluster.localcloud.state.cloud import CloudState, log, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.names import new_ocid
from gpucluster.localcloud.state.region import REGION
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CONTAINER_ENGINE,
    ApiError,
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
    read_json,
    required,
    show,
)

KIND, NODE_POOL = "cluster", "nodepool"
_ADDON, _WORK = "clusteraddon", "clustersworkrequest"
#: OKE offers three minor releases at a time. Which ones these are is the local cloud's choice: real OKE lists its own.
#: Where the home has release files, those are offered.
VERSIONS = ("v1.33.1", "v1.34.1", "v1.35.0")
_VCN_NATIVE, _FLANNEL = "OCI_VCN_IP_NATIVE", "FLANNEL_OVERLAY"
_BASIC, _ENHANCED = "BASIC_CLUSTER", "ENHANCED_CLUSTER"
_PODS, _SERVICES = "10.244.0.0/16", "10.96.0.0/16"
# Names of OKE's add-ons; True: essential, each cluster has it. The pod network's is one of the two of _NETWORK_ADDONS.
_ADDONS = {
    "CoreDNS": True,
    "KubeProxy": True,
    "CertManager": False,
    "ClusterAutoscaler": False,
    "KubernetesMetricsServer": False,
    "NvidiaGpuPlugin": False,
}
#: Not essential, and there from the beginning (docs.nvidia.com/aicr/integrator-guide/oke-gpu-setup).
_DEFAULT_ADDONS = ("NvidiaGpuPlugin",)
_NETWORK_ADDONS = {_VCN_NATIVE: "OciVcnIpNative", _FLANNEL: "Flannel"}
#: The local cloud has one version of each add-on; the number is its own.
ADDON_VERSION = "v1.0.0"
#: Arguments of add-ons that are texts of JSON (OKE's page of the arguments of the add-on NVIDIA GPU Plugin).
_JSON_ARGUMENTS = ("affinity", "nodeSelectors", "rollingUpdate", "tolerations", "topologySpreadConstraints")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_UPDATABLE = ("freeformTags", "definedTags", "imagePolicyConfig", "options")


# clusters


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "name", "compartmentId", "vcnId", "kubernetesVersion")
    if not _NAME.fullmatch(str(body["name"])):
        raise invalid(f"The name {body['name']} must have letters, digits, -, _ and . only, 255 at most")

    def make() -> tuple[Resource, str]:
        made, hidden = _cluster_body(cloud, body)
        row = cloud.new(KIND, made, hidden)
        work_request = cloud.begin_work("CLUSTER_CREATE", KIND, row, kind=_WORK)
        row.body["metadata"]["createdByWorkRequestId"] = work_request
        row.hidden["work_request"] = work_request
        cloud.store.save(row)
        return row, work_request

    row, work_request, new = cloud.create_once(call, make)
    if new:
        cloud.submit(f"cluster {row.id}", partial(finish_change, cloud, row.id))
    return Reply(status=202, headers={"opc-work-request-id": work_request})


def _cluster_body(cloud: CloudState, body: Json) -> tuple[Json, Json]:
    compartment = cloud.compartment(body["compartmentId"])
    vcn = cloud.related("vcn", body["vcnId"])
    version, kind = _version(cloud, body["kubernetesVersion"]), _type(body.get("type", _BASIC))
    networks = [_cni(option) for option in body.get("clusterPodNetworkOptions") or [{"cniType": _FLANNEL}]]
    endpoint = dict(body.get("endpointConfig") or {})
    if not endpoint.get("subnetId"):
        raise invalid("endpointConfig.subnetId is required: the local cloud has VCN-native clusters only")
    subnet = _subnet(cloud, vcn, endpoint["subnetId"])
    public = _public(endpoint, subnet)
    _groups(cloud, vcn, endpoint)
    ocid = new_ocid(KIND)
    ip = addresses.take_private(cloud, subnet, ocid)
    cloud.new(
        "privateip",
        {
            "compartmentId": compartment,
            "displayName": str(body["name"]),
            "ipAddress": ip,
            "isPrimary": True,
            "subnetId": subnet.id,
            "vnicId": new_ocid("vnic"),
        },
        {"owner": ocid},
    )
    certificate, key = certificates.new_authority(ocid[-12:])
    made = {
        "id": ocid,
        "name": str(body["name"]),
        "compartmentId": compartment,
        "vcnId": vcn.id,
        "kubernetesVersion": version,
        "kmsKeyId": body.get("kmsKeyId"),
        "type": kind,
        "endpointConfig": {"nsgIds": [], "securityAttributes": {}, **endpoint, "isPublicIpEnabled": public},
        "endpoints": _endpoints(ip, public=public),
        "options": _options(cloud, vcn, body.get("options") or {}, overlay=_FLANNEL in networks),
        "imagePolicyConfig": body.get("imagePolicyConfig") or {"isPolicyEnabled": False, "keyDetails": []},
        "clusterPodNetworkOptions": [{"cniType": network} for network in networks],
        "freeformTags": body.get("freeformTags", {}),
        "definedTags": body.get("definedTags", {}),
        "availableKubernetesUpgrades": _upgrades(cloud, version),
        "openIdConnectDiscoveryEndpoint": None,
        "openIdConnectDiscoveryKey": None,
        "lifecycleState": LifecycleState.CREATING,
        "lifecycleDetails": "",
        "metadata": {"timeCreated": timestamp(), "createdByUserId": cloud.identity.users[0].user},
    }
    return made, {"ip": ip, "ca": certificate, "ca_key": key, **control_plane.new_secrets()}


def versions(cloud: CloudState) -> tuple[str, ...]:
    """The versions that are offered: those of the home's release files. Without such, clusters are rows only."""
    try:
        folder = releases.mirror(cloud.home)
    except GpuClusterError as error:
        # Not 500: clients would try again for minutes.
        raise invalid(str(error)) from error
    if folder is not None:
        return tuple(release.version for release in releases.offered(folder))
    return () if cloud.engine.networked else VERSIONS


def _version(cloud: CloudState, value: object) -> str:
    offered = versions(cloud)
    if value not in offered:
        hint = ""
        if not offered:
            hint = f"none: name a mirror with release files of Kubernetes in {cloud.home / releases.CONFIG}"
        raise invalid(f"Invalid kubernetesVersion: {value}. Allowed values: {', '.join(offered) or hint}")
    return str(value)


def _type(value: object) -> str:
    if value not in (_BASIC, _ENHANCED):
        raise invalid(f"type {value} is neither {_BASIC} nor {_ENHANCED}")
    return str(value)


def _cni(option: object) -> str:
    addon = option.get("cniType") if isinstance(option, dict) else None
    if addon not in _NETWORK_ADDONS:
        raise invalid(f"cniType {addon} is neither {_VCN_NATIVE} nor {_FLANNEL}")
    return str(addon)


def _subnet(cloud: CloudState, vcn: Resource, ocid: object) -> Resource:
    subnet = cloud.related("subnet", ocid)
    if subnet.body["vcnId"] != vcn.id:
        raise invalid(f"The subnet {subnet.id} is not in the VCN {vcn.id}")
    return subnet


def _public(endpoint: Json, subnet: Resource) -> bool:
    public = bool(endpoint.get("isPublicIpEnabled", False))
    if public and subnet.body["prohibitPublicIpOnVnic"]:
        raise invalid(f"isPublicIpEnabled is true, but the subnet {subnet.id} prohibits public IP addresses")
    return public


def _groups(cloud: CloudState, vcn: Resource, endpoint: Json) -> None:
    for group in endpoint.get("nsgIds") or []:
        if cloud.related("networksecuritygroup", group).body["vcnId"] != vcn.id:
            raise invalid(f"The network security group {group} is not in the VCN {vcn.id}")


def _options(cloud: CloudState, vcn: Resource, options: Json, *, overlay: bool) -> Json:
    """The options of a cluster; the ranges of pods and services overlap neither each other nor the VCN.

    Args:
        overlay: pods have addresses of podsCidr. Otherwise they have those of a subnet, and nothing has podsCidr's.
    """
    network = {"podsCidr": _PODS, "servicesCidr": _SERVICES, **(options.get("kubernetesNetworkConfig") or {})}
    ranges = {"VCN": vcn.body["cidrBlocks"]} | {
        name: [network[name]] for name in ("servicesCidr", *(["podsCidr"] if overlay else []))
    }
    parsed: list[tuple[str, ipaddress.IPv4Network]] = []
    for name, blocks in ranges.items():
        for block in blocks:
            try:
                address_range = ipaddress.IPv4Network(block)
            except ValueError as error:
                raise invalid(f"kubernetesNetworkConfig.{name} {block} is not a CIDR block: {error}") from error
            for other, theirs in parsed:
                if other != name and address_range.overlaps(theirs):
                    raise invalid(f"kubernetesNetworkConfig.{name} {address_range} overlaps {other} {theirs}")
            parsed.append((name, address_range))
    subnets = list(options.get("serviceLbSubnetIds") or [])
    for subnet in subnets:
        _subnet(cloud, vcn, subnet)
    return {
        "addOns": {"isKubernetesDashboardEnabled": False, "isTillerEnabled": False},
        "admissionControllerOptions": {"isPodSecurityPolicyEnabled": False},
        "ipFamilies": ["IPv4"],
        **options,
        "serviceLbSubnetIds": subnets,
        "kubernetesNetworkConfig": network,
    }


def _endpoints(ip: str, *, public: bool) -> Json:
    # As with instances, the public address is the private one (see compute/launching.py).
    address = f"{ip}:{control_plane.API_PORT}"
    return {
        "kubernetes": "",
        "privateEndpoint": address,
        "publicEndpoint": address if public else None,
        "vcnHostnameEndpoint": None,
        "ipv6Endpoint": None,
    }


def _upgrades(cloud: CloudState, version: str) -> list[str]:
    """Newer versions: a cluster is upgraded by one minor release at a time."""
    major, minor, patch = releases.numbers(version)
    return [
        each
        for each in versions(cloud)
        if (major, minor, patch) < releases.numbers(each) and releases.numbers(each)[:2] <= (major, minor + 1)
    ]


def finish_change(cloud: CloudState, ocid: str) -> None:
    """Finish a create, an update or a delete. A restarted server calls this again."""
    with cloud.locked(ocid):
        row = cloud.get(KIND, ocid)
        try:
            if cloud.engine.networked and not _work(cloud, row):
                return
        except GpuClusterError as error:
            log.error("cluster %s (%s): %s", row.body["name"], ocid, error)
            _fail(cloud, row, str(error))
        else:
            _settle(cloud, ocid)


def _work(cloud: CloudState, row: Resource) -> bool:
    """Bring the control plane to the cluster's state. False: the server ends, and the next one does it."""
    if row.state == LifecycleState.CREATING:
        return control_plane.start(cloud, row, releases.find(cloud.home, row.body["kubernetesVersion"]))
    if row.state == LifecycleState.UPDATING and "kubernetesVersion" in row.hidden.get("changes", {}):
        return control_plane.start(cloud, row, releases.find(cloud.home, row.hidden["changes"]["kubernetesVersion"]))
    if row.state == LifecycleState.DELETING:
        control_plane.remove(cloud, row)
    return True


def _fail(cloud: CloudState, row: Resource, reason: str) -> None:
    with cloud.store.transaction():
        cloud.update(KIND, row.id, lifecycleDetails=reason)
        cloud.set_state(KIND, row.id, LifecycleState.FAILED)
        cloud.end_work(row.hidden["work_request"], errors=(("InternalError", reason),))


def _settle(cloud: CloudState, ocid: str) -> None:
    with cloud.store.transaction():
        row = cloud.get(KIND, ocid)
        if row.state == LifecycleState.CREATING:
            cloud.set_state(KIND, ocid, LifecycleState.ACTIVE)
            essential = [each for each, always in _ADDONS.items() if always]
            for name in (*essential, *_DEFAULT_ADDONS, *_network_addons(row)):
                _new_addon(cloud, row, name, {}, LifecycleState.ACTIVE)
            cloud.end_work(row.hidden["work_request"], action=WorkAction.CREATED)
        elif row.state == LifecycleState.UPDATING:
            row.body.update(row.hidden.pop("changes", {}))
            row.body["metadata"]["timeUpdated"] = timestamp()
            cloud.store.save(row)
            cloud.set_state(KIND, ocid, LifecycleState.ACTIVE)
            cloud.end_work(row.hidden["work_request"], action=WorkAction.UPDATED)
        elif row.state == LifecycleState.DELETING:
            for addon in cloud.store.find(_ADDON, clusterId=ocid):
                cloud.set_state(_ADDON, addon.id, LifecycleState.DELETED, gone=True)
            addresses.release(cloud, ocid)
            for name in ("ca_key", "accounts_key", "review_secret"):
                row.hidden.pop(name, None)
            row.body["metadata"]["timeDeleted"] = timestamp()
            cloud.store.save(row)
            cloud.set_state(KIND, ocid, LifecycleState.DELETED, gone=True)
            cloud.end_work(row.hidden["work_request"], action=WorkAction.DELETED)


def look(cloud: CloudState, clusters: Iterable[Resource], states: Mapping[str, RunState]) -> None:
    """Set a cluster whose control plane has ended to FAILED, and one that runs again to ACTIVE.

    Args:
        clusters: read before the states, or a control plane that has just been started would count as ended.
        states: of all containers by name.
    """
    for row in clusters:
        if row.state not in (LifecycleState.ACTIVE, LifecycleState.FAILED):
            continue
        container_state = states.get(control_plane.container(row), RunState.ABSENT)
        with cloud.store.transaction():
            now = cloud.get(KIND, row.id)
            if now.state == LifecycleState.ACTIVE and container_state != RunState.RUNNING:
                reason = (
                    f"The container of the control plane is {container_state}; "
                    "the next start of the local cloud starts it"
                )
                log.warning("cluster %s (%s): %s", now.body["name"], now.id, reason)
                now.hidden["ended"] = True
                now.body["lifecycleDetails"] = reason
                cloud.store.save(now)
                cloud.set_state(KIND, now.id, LifecycleState.FAILED)
            elif now.state == LifecycleState.FAILED and now.hidden.get("ended") and container_state == RunState.RUNNING:
                now.hidden.pop("ended")
                now.body["lifecycleDetails"] = ""
                cloud.store.save(now)
                cloud.set_state(KIND, now.id, LifecycleState.ACTIVE)


def _network_addons(cluster: Resource) -> list[str]:
    return [_NETWORK_ADDONS[option["cniType"]] for option in cluster.body["clusterPodNetworkOptions"]]


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    # Deleted clusters stay in the list for a while, as on OCI.
    rows = filtered(cloud.store.find(KIND, gone=None), call, ("compartmentId", "name", "lifecycleState"))
    return page(rows, call)


def _active(cloud: CloudState, call: Call, *also: LifecycleState) -> Resource:
    row = cloud.live(KIND, call.path["clusterId"])
    check_etag(call, row)
    if row.state not in (LifecycleState.ACTIVE, *also):
        raise incorrect_state(f"Cluster {row.id} is {row.state}")
    return row


def _change(cloud: CloudState, row: Resource, operation: str, changes: Json) -> Reply:
    """Set a cluster to UPDATING with the changes that `finish_change` makes; in the caller's transaction."""
    row.hidden["changes"] = changes
    row.hidden["work_request"] = cloud.begin_work(operation, KIND, row, kind=_WORK)
    row.body["metadata"]["updatedByWorkRequestId"] = row.hidden["work_request"]
    cloud.store.save(row)
    cloud.set_state(KIND, row.id, LifecycleState.UPDATING)
    return Reply(status=202, headers={"opc-work-request-id": row.hidden["work_request"]})


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        row = _active(cloud, call)
        changes: Json = {name: body[name] for name in _UPDATABLE if name in body}
        if "options" in changes:
            if (
                changes["options"].get("kubernetesNetworkConfig", row.body["options"]["kubernetesNetworkConfig"])
                != (row.body["options"]["kubernetesNetworkConfig"])
            ):
                raise invalid("kubernetesNetworkConfig can't be changed after the create of a cluster")
            changes["options"] = {**row.body["options"], **changes["options"]}
        if "name" in body:
            if not _NAME.fullmatch(str(body["name"])):
                raise invalid(f"The name {body['name']} must have letters, digits, -, _ and . only, 255 at most")
            changes["name"] = str(body["name"])
        if body.get("type", row.body["type"]) != row.body["type"]:
            if _type(body["type"]) == _BASIC:
                raise invalid("An enhanced cluster can't become a basic cluster")
            changes["type"] = _ENHANCED
        version = body.get("kubernetesVersion", row.body["kubernetesVersion"])
        if version != row.body["kubernetesVersion"]:
            if version not in row.body["availableKubernetesUpgrades"]:
                upgrades = ", ".join(row.body["availableKubernetesUpgrades"]) or "none"
                raise invalid(
                    f"The cluster can't go from {row.body['kubernetesVersion']} to {version};"
                    f" available upgrades: {upgrades}"
                )
            changes |= {"kubernetesVersion": version, "availableKubernetesUpgrades": _upgrades(cloud, str(version))}
        reply = _change(cloud, row, "CLUSTER_UPDATE", changes)
    cloud.submit(f"cluster {row.id}", partial(finish_change, cloud, row.id))
    return reply


def _update_endpoint(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        row = _active(cloud, call)
        old = row.body["endpointConfig"]
        subnet, vcn = cloud.get("subnet", old["subnetId"]), cloud.get("vcn", row.body["vcnId"])
        endpoint = {**old, **{name: body[name] for name in ("isPublicIpEnabled", "nsgIds") if name in body}}
        _groups(cloud, vcn, endpoint)
        public = _public(endpoint, subnet)
        changes: Json = {"endpointConfig": endpoint, "endpoints": _endpoints(row.hidden["ip"], public=public)}
        reply = _change(cloud, row, "CLUSTER_UPDATE", changes)
    cloud.submit(f"cluster {row.id}", partial(finish_change, cloud, row.id))
    return reply


def _delete(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _active(cloud, call, LifecycleState.FAILED)
        # OKE would delete them with the cluster; no caller has asked for that here.
        if cloud.store.find(NODE_POOL, clusterId=row.id):
            raise conflict(f"The cluster {row.id} has node pools; delete them first")
        row.hidden["work_request"] = cloud.begin_work("CLUSTER_DELETE", KIND, row, kind=_WORK)
        row.body["metadata"]["deletedByWorkRequestId"] = row.hidden["work_request"]
        cloud.store.save(row)
        cloud.set_state(KIND, row.id, LifecycleState.DELETING)
    cloud.submit(f"cluster {row.id}", partial(finish_change, cloud, row.id))
    return Reply(status=202, headers={"opc-work-request-id": row.hidden["work_request"]})


def _kubeconfig(cloud: CloudState, call: Call) -> Reply:
    """A kubeconfig without a secret: kubectl asks oci-cli for a short-lived token (version 2.0.0 of the tokens)."""
    body = call.body()
    row = cloud.live(KIND, call.path["clusterId"])
    if row.state not in (LifecycleState.ACTIVE, LifecycleState.UPDATING):
        raise incorrect_state(f"Cluster {row.id} is {row.state}")
    if body.get("tokenVersion", "2.0.0") != "2.0.0":
        raise invalid(f"tokenVersion {body['tokenVersion']} is not 2.0.0, the only version that is supported")
    addresses = row.body["endpoints"]
    endpoints = {"PRIVATE_ENDPOINT": addresses["privateEndpoint"], "PUBLIC_ENDPOINT": addresses["publicEndpoint"]}
    endpoint = body.get("endpoint") or ("PUBLIC_ENDPOINT" if addresses["publicEndpoint"] else "PRIVATE_ENDPOINT")
    if not endpoints.get(endpoint):
        raise invalid(f"The cluster {row.id} has no {endpoint}")
    name, user, context = (f"{prefix}-{row.id[-11:]}" for prefix in ("cluster", "user", "context"))
    arguments = ["ce", "cluster", "generate-token", "--cluster-id", row.id, "--region", REGION]
    certificate = base64.b64encode(row.hidden["ca"].encode()).decode()
    cluster = {"server": f"https://{endpoints[endpoint]}", "certificate-authority-data": certificate}
    exec_plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "oci",
        "args": arguments,
        "env": [],
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user, "user": {"exec": exec_plugin}}],
        "contexts": [{"name": context, "context": {"cluster": name, "user": user}}],
        "current-context": context,
    }
    return Reply(yaml.safe_dump(config, sort_keys=False).encode())


def _cluster_options(cloud: CloudState, call: Call) -> Reply:
    if call.path["clusterOptionId"] != "all":
        cloud.live(KIND, call.path["clusterOptionId"])
    networks = [{"cniType": name} for name in _NETWORK_ADDONS]
    return Reply({"kubernetesVersions": list(versions(cloud)), "clusterPodNetworkOptions": networks})


# add-ons


def _new_addon(cloud: CloudState, cluster: Resource, name: str, body: Json, state: LifecycleState) -> Resource:
    made = {
        "clusterId": cluster.id,
        "name": name,
        "version": body.get("version"),
        "currentInstalledVersion": ADDON_VERSION if state == LifecycleState.ACTIVE else None,
        "configurations": body.get("configurations") or [],
        "addonError": None,
        "lifecycleState": state,
    }
    return cloud.new(_ADDON, made)


def _shown(names: Sequence[str], row: Resource) -> Json:
    return {name: row.body.get(name) for name in names}


_SUMMARY = ("name", "version", "currentInstalledVersion", "timeCreated", "lifecycleState", "addonError")
_summary, _detail = partial(_shown, _SUMMARY), partial(_shown, (*_SUMMARY, "configurations"))


def _addon(cloud: CloudState, call: Call) -> Resource:
    cluster = cloud.live(KIND, call.path["clusterId"])
    name = call.path["addonName"]
    for row in cloud.store.find(_ADDON, clusterId=cluster.id, name=name):
        return row
    raise not_found("addon", name)


def _idle(addon: Resource) -> Resource:
    if addon.state != LifecycleState.ACTIVE:
        raise incorrect_state(f"The add-on {addon.body['name']} is {addon.state}")
    return addon


def _check_addon(body: Json) -> None:
    version = body.get("version")
    if version not in (None, ADDON_VERSION):
        raise invalid(f"version {version} of the add-on is not {ADDON_VERSION}, the only one of the local cloud")
    for each in body.get("configurations") or ():
        if each.get("key") in _JSON_ARGUMENTS:
            try:
                json.loads(str(each.get("value")))
            except ValueError:
                raise invalid(f"the argument {each['key']} of the add-on is not JSON") from None


def _manages_addons(cloud: CloudState, call: Call) -> Resource:
    cluster = _active(cloud, call)
    if cluster.body["type"] != _ENHANCED:
        raise invalid(f"Cluster {cluster.id} is a basic cluster; add-ons are managed in enhanced clusters only")
    return cluster


def _begin_addon(cloud: CloudState, cluster: Resource, addon: Resource, operation: str) -> Reply:
    addon.hidden["work_request"] = cloud.begin_work(operation, KIND, cluster, kind=_WORK)
    cloud.store.save(addon)
    return Reply(status=202, headers={"opc-work-request-id": addon.hidden["work_request"]})


def _install_addon(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "addonName")
    _check_addon(body)
    name = str(body["addonName"])
    with cloud.store.transaction():
        cluster = _manages_addons(cloud, call)
        if name not in (*_ADDONS, *_NETWORK_ADDONS.values()):
            raise invalid(f"There is no add-on {name}")
        present = cloud.store.find(_ADDON, clusterId=cluster.id, name=name)
        if present and not body.get("isOverrideExisting"):
            raise conflict(f"Cluster {cluster.id} has the add-on {name} already")
        row = _idle(present[0]) if present else _new_addon(cloud, cluster, name, body, LifecycleState.CREATING)
        if present:
            row.body.update({key: body[key] for key in ("version", "configurations") if key in body})
            row = _set_addon(cloud, row, LifecycleState.UPDATING)
        reply = _begin_addon(cloud, cluster, row, "UPDATE_ADDON" if present else "ENABLE_ADDON")
    cloud.submit(f"add-on {row.id}", partial(finish_addon, cloud, row.id))
    return reply


def _set_addon(cloud: CloudState, row: Resource, state: LifecycleState) -> Resource:
    cloud.store.save(row)
    return cloud.set_state(_ADDON, row.id, state)


def _update_addon(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    _check_addon(body)
    with cloud.store.transaction():
        cluster, row = _manages_addons(cloud, call), _idle(_addon(cloud, call))
        # Null means that the service updates it (the SDK's model). That leaving it out means the same is assumed here:
        # oracle/oci sends nothing for an add-on without a version.
        row.body.update({"version": None} | {key: body[key] for key in ("version", "configurations") if key in body})
        reply = _begin_addon(cloud, cluster, _set_addon(cloud, row, LifecycleState.UPDATING), "UPDATE_ADDON")
    cloud.submit(f"add-on {row.id}", partial(finish_addon, cloud, row.id))
    return reply


def _disable_addon(cloud: CloudState, call: Call) -> Reply:
    call.need("isRemoveExistingAddOn")
    with cloud.store.transaction():
        cluster, row = _manages_addons(cloud, call), _idle(_addon(cloud, call))
        reply = _begin_addon(cloud, cluster, _set_addon(cloud, row, LifecycleState.DELETING), "DISABLE_ADDON")
    cloud.submit(f"add-on {row.id}", partial(finish_addon, cloud, row.id))
    return reply


def finish_addon(cloud: CloudState, ocid: str) -> None:
    """Finish a change of an add-on. A restarted server calls this again."""
    with cloud.store.transaction():
        row = cloud.get(_ADDON, ocid)
        work_request = row.hidden.get("work_request", "")
        if row.state == LifecycleState.DELETING:
            cloud.set_state(_ADDON, ocid, LifecycleState.DELETED, gone=True)
            cloud.end_work(work_request, action=WorkAction.DELETED)
        elif row.state in (LifecycleState.CREATING, LifecycleState.UPDATING):
            action = WorkAction.CREATED if row.state == LifecycleState.CREATING else WorkAction.UPDATED
            row.body["currentInstalledVersion"] = ADDON_VERSION
            _set_addon(cloud, row, LifecycleState.ACTIVE)
            cloud.end_work(work_request, action=action)


def _list_addons(cloud: CloudState, call: Call) -> Reply:
    cluster = cloud.live(KIND, call.path["clusterId"])
    return page(cloud.store.find(_ADDON, clusterId=cluster.id), call, view=_summary)


def _addon_options(cloud: CloudState, call: Call) -> Reply:
    version = _version(cloud, call.need("kubernetesVersion"))
    addon = call.query.get("addonName")
    offered = {**_ADDONS, **dict.fromkeys(_NETWORK_ADDONS.values(), True)}
    filters = {"minimalVersion": versions(cloud)[0], "maximumVersion": None, "exactKubernetesVersions": [version]}
    made = [{"versionNumber": ADDON_VERSION, "status": "ACTIVE", "kubernetesVersionFilters": filters}]
    return Reply(
        [
            {"name": name, "lifecycleState": "ACTIVE", "isEssential": essential, "versions": made}
            for name, essential in sorted(offered.items())
            if addon in (None, "", name)
        ]
    )


# work requests


def _work_request(cloud: CloudState, call: Call) -> Resource:
    row = cloud.store.get(_WORK, call.path["workRequestId"])
    if row is None:
        raise not_found("work request", call.path["workRequestId"])
    return row


def _work_requests(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    cluster, status = call.query.get("clusterId"), call.query.get("status")
    rows = [
        row
        for row in cloud.store.find(_WORK, gone=None, compartmentId=compartment)
        if cluster in (None, "", row.body["resources"][0]["identifier"]) and status in (None, "", row.body["status"])
    ]
    return page(rows, call)


def recover(cloud: CloudState) -> None:
    """Finish what a stop of the server has interrupted."""
    for cluster in cloud.store.find(KIND):
        cloud.submit(f"cluster {cluster.id}", partial(_recover, cloud, cluster.id))
    for addon in cloud.store.find(_ADDON):
        cloud.submit(f"add-on {addon.id}", partial(finish_addon, cloud, addon.id))


def _recover(cloud: CloudState, ocid: str) -> None:
    row = cloud.get(KIND, ocid)
    ended = row.state == LifecycleState.ACTIVE or (row.state == LifecycleState.FAILED and row.hidden.get("ended"))
    if not (ended and cloud.engine.networked):
        finish_change(cloud, ocid)
        return
    with cloud.locked(ocid):
        if control_plane.state(cloud, row) != RunState.RUNNING:
            log.warning("the control plane of the cluster %s (%s) is started again", row.body["name"], ocid)
            try:
                control_plane.start(cloud, row, releases.find(cloud.home, row.body["kubernetesVersion"]))
            except GpuClusterError as error:
                log.error("the control plane of %s can't be started: %s", ocid, error)
        look(cloud, [cloud.get(KIND, ocid)], {control_plane.container(row): control_plane.state(cloud, row)})


def review_token(cloud: CloudState, ocid: str, secret: str, body: bytes) -> Reply:
    """Answer the API server of a cluster, which asks who a token belongs to (TokenReview of Kubernetes).

    Raises:
        ApiError: 401 where it does not show the secret of this cluster.
    """
    row = cloud.store.get(KIND, ocid)
    known = str(row.hidden.get("review_secret", "")) if row else ""
    if row is None or not known or not hmac.compare_digest(known.encode(), secret.encode()):
        raise ApiError(401, "NotAuthenticated", "This is not the API server of a cluster of the local cloud")
    try:
        review = read_json(body)
        token = str(review["spec"]["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(400, "CannotParseRequest", f"Incoming request is not a TokenReview: {error}") from error
    status = tokens.review(cloud, row, token)
    return Reply({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})


def containers(cloud: CloudState) -> set[str]:
    """The engine's names of the control planes."""
    return {control_plane.container(row) for row in cloud.store.find(KIND)}


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Clusters, add-ons, work requests."""
    clusters, work = f"{CONTAINER_ENGINE}/clusters", f"{CONTAINER_ENGINE}/workRequests"
    one, one_work = f"{clusters}/{{clusterId}}", f"{work}/{{workRequestId}}"
    addons, addon = f"{one}/addons", f"{one}/addons/{{addonName}}"
    return [
        ApiRoute("POST", clusters, "CreateCluster", partial(_create, cloud)),
        ApiRoute("GET", clusters, "ListClusters", partial(_list, cloud)),
        ApiRoute("GET", one, "GetCluster", lambda call: show(cloud.get(KIND, call.path["clusterId"]))),
        ApiRoute("PUT", one, "UpdateCluster", partial(_update, cloud)),
        ApiRoute("DELETE", one, "DeleteCluster", partial(_delete, cloud)),
        ApiRoute("POST", f"{one}/actions/updateEndpointConfig", "UpdateClusterEndpointConfig",
              partial(_update_endpoint, cloud)),
        ApiRoute("POST", f"{one}/kubeconfig/content", "CreateKubeconfig", partial(_kubeconfig, cloud)),
        ApiRoute("GET", f"{CONTAINER_ENGINE}/clusterOptions/{{clusterOptionId}}", "GetClusterOptions",
              partial(_cluster_options, cloud)),
        ApiRoute("GET", f"{CONTAINER_ENGINE}/addonOptions", "ListAddonOptions", partial(_addon_options, cloud)),
        ApiRoute("POST", addons, "InstallAddon", partial(_install_addon, cloud)),
        ApiRoute("GET", addons, "ListAddons", partial(_list_addons, cloud)),
        ApiRoute("GET", addon, "GetAddon", lambda call: Reply(_detail(_addon(cloud, call)))),
        ApiRoute("PUT", addon, "UpdateAddon", partial(_update_addon, cloud)),
        ApiRoute("DELETE", addon, "DisableAddon", partial(_disable_addon, cloud)),
        ApiRoute("GET", work, "ListClusterWorkRequests", partial(_work_requests, cloud)),
        ApiRoute("GET", one_work, "GetClusterWorkRequest", lambda call: show(_work_request(cloud, call))),
        ApiRoute("GET", f"{one_work}/errors", "ListClusterWorkRequestErrors",
              lambda call: Reply(_work_request(cloud, call).hidden["errors"])),
        ApiRoute("GET", f"{one_work}/logs", "ListClusterWorkRequestLogs", lambda call: Reply([])),
    ]  # fmt: skip
