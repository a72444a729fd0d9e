"""Identity: the tenancy, its compartments, domains and regions; dynamic groups and policies, which are enforced;
tag namespaces.
"""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.auth import policies
from gpucluster.localcloud.auth.authorization import policies_in_force
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS, FAULT_DOMAINS, REGION
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.tag_namespaces import DEFINITION, NAMESPACE
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    conflict,
    invalid,
    not_found,
    page,
    required,
    show,
)

_REGION_KEY = "LOC"
_NAMED = {
    "required": ("compartmentId", "name", "description"),
    "filters": ("compartmentId", "name", "lifecycleState"),
    "initial": LifecycleState.ACTIVE, "ready": LifecycleState.ACTIVE,
    "ending": LifecycleState.DELETING, "gone": LifecycleState.DELETED,
}  # fmt: skip


def _unique(kind: str, cloud: CloudState, body: Json) -> Json:
    if cloud.store.find(kind, name=body["name"], compartmentId=body["compartmentId"]):
        raise conflict(f"A {kind} named {body['name']} already exists in the compartment")
    return {**body, "displayName": body["name"]}


def _empty(cloud: CloudState, compartment: Resource) -> None:
    for kind in ("compartment", "vcn", "instance", "filesystem"):
        for user in cloud.store.find(kind, compartmentId=compartment.id):
            raise conflict(f"The compartment {compartment.id} still has the {kind} {user.id}")


COMPARTMENT = ResourceKind(
    "compartment", f"{CORE}/compartments", "Compartment", "Compartments", "compartmentId",
    fields=("name", "description"), updatable=("name", "description"), prepare=partial(_unique, "compartment"),
    check_delete=_empty, **_NAMED,  # type: ignore[arg-type]
)  # fmt: skip


def _prepare_group(cloud: CloudState, body: Json) -> Json:
    if body["compartmentId"] != cloud.identity.tenancy:
        raise invalid("The compartmentId of a dynamic group must be the tenancy")
    _readable_rule(body)
    return _unique("dynamicgroup", cloud, body)


def _changed_group(_cloud: CloudState, _group: Resource, changes: Json) -> Json:
    _readable_rule(changes)
    return changes


def _readable_rule(body: Json) -> None:
    try:
        policies.matching_rule(str(body.get("matchingRule", "instance.id = ''")))
    except policies.PolicySyntaxError as error:
        raise invalid(f"The matching rule can't be parsed: {error}") from error


def _prepare_policy(cloud: CloudState, body: Json) -> Json:
    _readable_statements(cloud, body, body["compartmentId"])
    return _unique("policy", cloud, body)


def _changed_policy(cloud: CloudState, policy: Resource, changes: Json) -> Json:
    if "statements" in changes:
        _readable_statements(cloud, changes, policy.body["compartmentId"])
    return changes


def _readable_statements(cloud: CloudState, body: Json, compartment: str) -> None:
    if not isinstance(body.get("statements"), list) or not body["statements"]:
        raise invalid("statements must be a list of at least one statement")
    try:
        policies.check_statements(body["statements"], compartment, policies_in_force(cloud))
    except policies.PolicySyntaxError as error:
        raise invalid(str(error)) from error


DYNAMIC_GROUP = ResourceKind(
    "dynamicgroup", f"{CORE}/dynamicGroups", "DynamicGroup", "DynamicGroups", "dynamicGroupId",
    fields=("name", "description", "matchingRule"), updatable=("description", "matchingRule"),
    prepare=_prepare_group, check_update=_changed_group, **_NAMED,  # type: ignore[arg-type]
)  # fmt: skip
POLICY = ResourceKind(
    "policy", f"{CORE}/policies", "Policy", "Policies", "policyId",
    fields=("name", "description", "statements", "versionDate"), updatable=("description", "statements", "versionDate"),
    prepare=_prepare_policy, check_update=_changed_policy, **_NAMED,  # type: ignore[arg-type]
)  # fmt: skip


def _prepare_namespace(cloud: CloudState, body: Json) -> Json:
    if cloud.store.find(NAMESPACE, name=body["name"]):
        raise conflict(f"A tag namespace named {body['name']} already exists in the tenancy")
    return {**body, "displayName": body["name"], "isRetired": False}


TAG_NAMESPACE = ResourceKind(
    NAMESPACE, f"{CORE}/tagNamespaces", "TagNamespace", "TagNamespaces", "tagNamespaceId",
    fields=("name", "description"), updatable=("description",), prepare=_prepare_namespace,
    **_NAMED,  # type: ignore[arg-type]
)  # fmt: skip


def _create_tag(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "name", "description")
    with cloud.store.transaction():
        namespace = cloud.live(NAMESPACE, call.path["tagNamespaceId"])
        if cloud.store.find(DEFINITION, tagNamespaceId=namespace.id, name=body["name"]):
            raise conflict(f"A tag named {body['name']} already exists in namespace {namespace.body['name']}")
        tag = cloud.new(
            DEFINITION,
            {
                "compartmentId": namespace.body["compartmentId"],
                "tagNamespaceId": namespace.id,
                "tagNamespaceName": namespace.body["name"],
                "name": body["name"],
                "displayName": body["name"],
                "description": body["description"],
                "isRetired": False,
                "lifecycleState": LifecycleState.ACTIVE,
            },
        )
    return show(tag)


def _tags(cloud: CloudState, call: Call) -> Reply:
    return page(cloud.store.find(DEFINITION, tagNamespaceId=call.path["tagNamespaceId"]), call)


def _domains(cloud: CloudState, call: Call) -> Reply:
    """The availability domains. Never paged: the SDK's list operation has no `page`."""
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    return Reply(
        [
            {"id": f"ocid1.availabilitydomain.local..ad{number}", "name": name, "compartmentId": compartment}
            for number, name in enumerate(AVAILABILITY_DOMAINS, start=1)
        ]
    )


def _fault_domains(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    domain = call.need("availabilityDomain")
    if domain not in AVAILABILITY_DOMAINS:
        raise invalid(f"availabilityDomain {domain} does not exist")
    number_of_domain = AVAILABILITY_DOMAINS.index(domain) + 1
    return Reply(
        [
            {
                "id": f"ocid1.faultdomain.local..ad{number_of_domain}fd{number}",
                "name": name,
                "compartmentId": compartment,
                "availabilityDomain": domain,
            }
            for number, name in enumerate(FAULT_DOMAINS, start=1)
        ]
    )


def _compartment(cloud: CloudState, call: Call) -> Reply:
    """A compartment. The tenancy is the root compartment and can be read as one."""
    if call.path["compartmentId"] != cloud.identity.tenancy:
        return show(cloud.get("compartment", call.path["compartmentId"]))
    return Reply(
        {
            "id": cloud.identity.tenancy,
            "compartmentId": None,
            "name": "local",
            "description": "The root compartment of the local cloud",
            "lifecycleState": LifecycleState.ACTIVE,
            "isAccessible": True,
            "freeformTags": {},
            "definedTags": {},
        }
    )


def _tenancy(cloud: CloudState, call: Call) -> Reply:
    if call.path["tenancyId"] != cloud.identity.tenancy:
        raise not_found("tenancy", call.path["tenancyId"])
    return Reply(
        {
            "id": cloud.identity.tenancy,
            "name": "local",
            "description": "The local cloud of this machine",
            "homeRegionKey": _REGION_KEY,
            "freeformTags": {},
            "definedTags": {},
        }
    )


def _user(cloud: CloudState, call: Call) -> Reply:
    users = {user.user: user for user in cloud.identity.users}
    if call.path["userId"] not in users:
        raise not_found("user", call.path["userId"])
    user = users[call.path["userId"]]
    return Reply(
        {
            "id": user.user,
            "compartmentId": cloud.identity.tenancy,
            "name": user.name,
            "description": user.description,
            "lifecycleState": LifecycleState.ACTIVE,
            "freeformTags": {},
            "definedTags": {},
        }
    )


def _subscriptions(cloud: CloudState, call: Call) -> Reply:
    _tenancy(cloud, call)
    return Reply([{"regionKey": _REGION_KEY, "regionName": REGION, "status": "READY", "isHomeRegion": True}])


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Identity. It has the same version in its path as the core services."""
    compartments = [route for route in kinds.routes(cloud, COMPARTMENT) if route.operation != "GetCompartment"]
    tenancy = f"{CORE}/tenancies/{{tenancyId}}"
    return [
        *compartments,
        ApiRoute("GET", f"{COMPARTMENT.path}/{{compartmentId}}", "GetCompartment", partial(_compartment, cloud)),
        *kinds.routes(cloud, DYNAMIC_GROUP),
        *kinds.routes(cloud, POLICY),
        *kinds.routes(cloud, TAG_NAMESPACE),
        ApiRoute("POST", f"{TAG_NAMESPACE.path}/{{tagNamespaceId}}/tags", "CreateTag", partial(_create_tag, cloud)),
        ApiRoute("GET", f"{TAG_NAMESPACE.path}/{{tagNamespaceId}}/tags", "ListTags", partial(_tags, cloud)),
        ApiRoute("GET", f"{CORE}/availabilityDomains", "ListAvailabilityDomains", partial(_domains, cloud)),
        ApiRoute("GET", f"{CORE}/faultDomains", "ListFaultDomains", partial(_fault_domains, cloud)),
        ApiRoute("GET", tenancy, "GetTenancy", partial(_tenancy, cloud)),
        ApiRoute("GET", f"{tenancy}/regionSubscriptions", "ListRegionSubscriptions", partial(_subscriptions, cloud)),
        ApiRoute("GET", f"{CORE}/regions", "ListRegions", lambda call: Reply([{"key": _REGION_KEY, "name": REGION}])),
        ApiRoute("GET", f"{CORE}/users/{{userId}}", "GetUser", partial(_user, cloud)),
    ]
