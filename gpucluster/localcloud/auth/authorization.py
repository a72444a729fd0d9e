"""Authorization of instances: the permissions that a request requires, compared with the policies in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpucluster.localcloud.auth import policies
from gpucluster.localcloud.auth.policies import DynamicGroup, PolicySet, RequiredPermission, StoredPolicy
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.tag_namespaces import added
from gpucluster.localcloud.state.wire import ApiError, ApiRoute, Call

_DENIED = "Authorization failed or requested resource not found."
# These are required in the subnet's compartment, and the other permissions of a launch in the instance's. Source:
# Oracle's "Let users launch compute instances", which grants the network's permissions in the compartment of the
# network and VNIC_ATTACH in that of the instances.
_OF_NETWORK = ("SUBNET_", "VNIC_CREATE", "VNIC_DELETE")
_LAUNCHES = ("LaunchInstance", "LaunchInstanceConfiguration")
# The kinds whose defined tags are variables, target.resource.tag.<namespace>.<key>, of the permissions that begin so.
# INSTANCE_CREATE has none, and neither has a list: what does not exist, or is not named, has no tags (docs: "Using Tags
# to Manage Access").
_TAGGED = {
    "INSTANCE_CONFIGURATION_": "instanceconfiguration",
    "INSTANCE_": "instance",
    "SUBNET_": "subnet",
    "VCN_": "vcn",
}
_UNTAGGED = ("INSTANCE_CREATE", "INSTANCE_IMAGE_", "INSTANCE_POOL_", "INSTANCE_CONSOLE_", "INSTANCE_AGENT_")


def policies_in_force(cloud: CloudState) -> PolicySet:
    """The current policies and dynamic groups. Here they take effect at once; OCI needs up to some minutes."""
    store = cloud.store

    def ancestors(compartment: str) -> tuple[str, ...]:
        parents: list[str] = []
        at: str | None = compartment
        while at and at != cloud.identity.tenancy and at not in parents:
            row = store.get("compartment", at)
            if row is None:
                return ()
            parents.append(at)
            at = row.body.get("compartmentId")
        return (*parents, cloud.identity.tenancy)

    def child(parent: str, name: str) -> str | None:
        rows = store.find("compartment", compartmentId=parent)
        return next((row.id for row in rows if str(row.body["name"]).lower() == name.lower()), None)

    groups = (DynamicGroup(row.id, row.body["name"], row.body["matchingRule"]) for row in store.find("dynamicgroup"))
    written = (StoredPolicy(row.body["compartmentId"], tuple(row.body["statements"])) for row in store.find("policy"))
    return PolicySet(tuple(groups), tuple(written), ancestors, child)


def authorize(cloud: CloudState, instance_id: str, route: ApiRoute, call: Call) -> None:
    """Return if an instance may do this, else raise.

    Raises:
        ApiError: 401 for an instance that is gone; 404 for a request that no policy permits. OCI answers the same for
            a missing resource, so that a client can't tell the two apart.
    """
    instance = cloud.store.get("instance", instance_id)
    if instance is None or instance.gone_at is not None:
        raise ApiError(401, "NotAuthenticated", "The instance that signed this request is terminated.")
    required = required_permissions(cloud, route, call)
    if required is None:
        missing = ["the operator"]
    else:
        not_granted = policies_in_force(cloud).missing(call.operation, required, _principal(instance))
        missing = sorted({need.permission for need in not_granted})
    if missing:
        log.warning("%s is denied to %s: it requires %s", call.operation, instance_id, ", ".join(missing))
        raise ApiError(404, "NotAuthorizedOrNotFound", _DENIED)


def grants(
    cloud: CloudState, instance: Resource, operation: str, cluster: Resource, permissions: Iterable[str]
) -> set[str]:
    """Those of the permissions that policies give an instance on a cluster of Kubernetes Engine."""
    target = {"target.cluster.id": cluster.id}
    needs = [RequiredPermission(name, str(cluster.body["compartmentId"]), target) for name in permissions]
    missing = policies_in_force(cloud).missing(operation, needs, _principal(instance))
    return {need.permission for need in needs} - {need.permission for need in missing}


def _principal(instance: Resource) -> dict[str, str]:
    tags: Mapping[str, Mapping[str, object]] = instance.body.get("definedTags") or {}
    facts = {
        f"tag.{space}.{key}.value".lower(): str(value) for space, keys in tags.items() for key, value in keys.items()
    }
    for kind in ("instance", "resource"):
        facts[f"{kind}.id"] = instance.id
        facts[f"{kind}.compartment.id"] = str(instance.body["compartmentId"])
    return facts


def required_permissions(cloud: CloudState, route: ApiRoute, call: Call) -> list[RequiredPermission] | None:
    """The permissions that a request requires; None if only the operator may do it."""
    known = policies.tables()
    permissions = known.operations.get(route.operation)
    if permissions is None:
        return None
    place = _compartment(cloud, call)
    if route.operation in _LAUNCHES and route.details is not None:
        configuration = _named(cloud, call.path.get("instanceConfigurationId", ""))
        return _launch_needs(cloud, route.details(call), permissions, place, configuration)
    instance_id = call.path.get("instanceId", "")
    if permissions == policies.INHERITED:
        permissions, instance_id = _inherited(cloud, call)
    subnet = _subnet_of_instance(cloud, instance_id)
    network = str(subnet.body["compartmentId"]) if subnet else place
    named = [_named(cloud, ocid) for ocid in (*call.path.values(), instance_id)]
    targets = [resource for resource in (*named, subnet) if resource]
    return [
        *(
            RequiredPermission(name, network if name.startswith(_OF_NETWORK) else place, _target_tags(name, targets))
            for name in permissions
        ),
        *(_new_tags(cloud, call) if route.operation == "UpdateInstance" else ()),
    ]


def _new_tags(cloud: CloudState, call: Call) -> list[RequiredPermission]:
    """What it takes to give an instance defined tags that it does not have (docs: "Details for IAM")."""
    instance = _named(cloud, call.path.get("instanceId", ""))
    present = (instance.body.get("definedTags") or {}) if instance else {}
    spaces = sorted({space for space, _key in added(call.body().get("definedTags") or {}, present)})
    return [
        RequiredPermission(name, cloud.identity.tenancy, {"target.tag-namespace.name": space})
        for space in spaces
        for name in policies.tables().launch["defined_tags"]
    ]


def _target_tags(permission: str, targets: list[Resource]) -> dict[str, str]:
    """The tags of the resource that a permission is about, as variables of conditions."""
    if permission.startswith(_UNTAGGED):
        return {}
    kind = next((kind for prefix, kind in _TAGGED.items() if permission.startswith(prefix)), "")
    resource = next((target for target in targets if target.kind == kind), None)
    tags: Mapping[str, Mapping[str, object]] = (resource.body.get("definedTags") or {}) if resource else {}
    return {
        f"target.resource.tag.{space}.{key}".lower(): str(value)
        for space, keys in tags.items()
        for key, value in keys.items()
    }


def _named(cloud: CloudState, ocid: str) -> Resource | None:
    kind = ocid.split(".")[1] if ocid.startswith("ocid1.") and ocid.count(".") > 1 else ""
    return cloud.store.get(kind, ocid) if kind else None


def _inherited(cloud: CloudState, call: Call) -> tuple[tuple[str, ...], str]:
    """The permissions of the operation that started a work request, and its instance.

    For an unknown work request: the permissions of a launch.
    """
    row = cloud.store.get("coreservicesworkrequest", call.path["workRequestId"])
    known = policies.tables().operations
    permissions = known.get(str(row.body["operationType"])) if row else None
    permissions = permissions or known["LaunchInstance"]
    assert isinstance(permissions, tuple)
    return permissions, str(row.body["resources"][0]["identifier"]) if row else ""


def _launch_needs(
    cloud: CloudState,
    details: Json,
    permissions: tuple[str, ...] | str,
    of_configuration: str,
    configuration: Resource | None,
) -> list[RequiredPermission]:
    more = policies.tables().launch
    vnic: Json = details.get("createVnicDetails") or {}
    subnet = cloud.store.get("subnet", str(vnic.get("subnetId") or details.get("subnetId")))
    image = _image(cloud, details)
    here = str(details.get("compartmentId") or of_configuration)
    requested = {
        "compute_cluster": details.get("computeClusterId"),
        "capacity_reservation": details.get("capacityReservationId"),
        "network_security_groups": vnic.get("nsgIds"),
        "listing": image is not None and image.hidden.get("listing"),
    }
    needed = [*permissions, *(name for what, value in requested.items() if value for name in more[what])]
    places = {
        _OF_NETWORK: str(subnet.body["compartmentId"]) if subnet else here,
        ("INSTANCE_CONFIGURATION_",): of_configuration,
        ("INSTANCE_IMAGE_",): str(image.body.get("compartmentId") or here) if image else here,
        ("APP_CATALOG_",): cloud.identity.tenancy,
    }
    targets = [resource for resource in (configuration, subnet) if resource]
    needs = [
        RequiredPermission(
            name,
            next((at for kinds, at in places.items() if name.startswith(kinds)), here),
            _target_tags(name, targets),
        )
        for name in needed
    ]
    spaces = {**(details.get("definedTags") or {}), **(vnic.get("definedTags") or {})}
    facts = ({"target.tag-namespace.name": space} for space in spaces)
    return [
        *needs,
        *(RequiredPermission(name, cloud.identity.tenancy, fact) for fact in facts for name in more["defined_tags"]),
    ]


def _image(cloud: CloudState, details: Json) -> Resource | None:
    source: Json = details.get("sourceDetails") or {}
    return cloud.store.get("image", str(source.get("imageId") or details.get("imageId")))


def _subnet_of_instance(cloud: CloudState, instance_id: str) -> Resource | None:
    """The current or last subnet of an instance."""
    for attachment in cloud.store.find("vnicattachment", gone=None, instanceId=instance_id) if instance_id else ():
        subnet = cloud.store.get("subnet", str(attachment.body.get("subnetId")))
        if subnet is not None:
            return subnet
    return None


def _compartment(cloud: CloudState, call: Call) -> str:
    """The compartment of the resource that a request names in its path, its query or its body, in this order."""
    tenancy = cloud.identity.tenancy
    body = call.body() if call.raw else {}
    for ocid in (*call.path.values(), *_ids(call.query), *_ids(body)):
        if ocid == tenancy:
            return tenancy
        row = _named(cloud, ocid)
        if row is not None:
            return row.id if row.kind == "compartment" else str(row.body.get("compartmentId") or tenancy)
    return tenancy


def _ids(values: Mapping[str, object]) -> list[str]:
    """The OCIDs among these values, the compartment's first."""
    named = [str(value) for name, value in sorted(values.items()) if name.endswith("Id") and name != "compartmentId"]
    return ([str(values["compartmentId"])] if "compartmentId" in values else []) + named
