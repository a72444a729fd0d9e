"""Security rules of lists and groups; the services behind a service gateway; CIDR blocks.

Rules are checked, stored and shown; they do not filter any packet of this machine.
"""

from __future__ import annotations

import ipaddress
from functools import partial

from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.names import new_ocid
from gpucluster.localcloud.state.region import REGION
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, Call, Reply, invalid, not_found, page

SERVICES = (
    (
        "all",
        f"all-{REGION}-services-in-oracle-services-network",
        f"All {REGION.upper()} Services In Oracle Services Network",
    ),
    ("os", f"oci-{REGION}-objectstorage", f"OCI {REGION.upper()} Object Storage"),
)


def cidr(text: object, *, shortest: int = 16, longest: int = 30) -> ipaddress.IPv4Network:
    """A CIDR block as OCI accepts it for VCNs and subnets: /16 to /30, host bits zero."""
    try:
        block = ipaddress.IPv4Network(str(text))
    except ValueError as error:
        raise invalid(f"The CIDR block {text} is invalid: {error}") from error
    if not shortest <= block.prefixlen <= longest:
        raise invalid(f"The CIDR block {text} must be between /{shortest} and /{longest}")
    return block


def _service_id(key: str) -> str:
    return f"ocid1.service.local..{key}"


def checked_services(entries: list[Json]) -> list[Json]:
    """The services of a service gateway, with their names."""
    names = {_service_id(key): name for key, _, name in SERVICES}
    for entry in entries:
        if entry.get("serviceId") not in names:
            raise invalid(f"serviceId {entry.get('serviceId')} does not exist")
    return [{"serviceId": entry["serviceId"], "serviceName": names[entry["serviceId"]]} for entry in entries]


def checked_rule(rule: Json, side: str) -> Json:
    """A security rule with OCI's defaults; `side` is source or destination."""
    full = {"isStateless": False, f"{side}Type": "CIDR_BLOCK", **rule}
    if "protocol" not in full:
        raise invalid("A security rule needs a protocol")
    if full[f"{side}Type"] == "CIDR_BLOCK":
        cidr(full.get(side), shortest=0, longest=32)
    return full


def checked_lists(body: Json) -> Json:
    """The body of a security list, its rules completed with OCI's defaults."""
    for name, side in (("ingressSecurityRules", "source"), ("egressSecurityRules", "destination")):
        if name in body:
            body[name] = [checked_rule(rule, side) for rule in body[name]]
    return body


def _group_rules(cloud: CloudState, call: Call) -> tuple[Resource, list[Json]]:
    group = cloud.live("networksecuritygroup", call.path["networkSecurityGroupId"])
    return group, group.hidden.setdefault("rules", [])


def _list_rules(cloud: CloudState, call: Call) -> Reply:
    _, rules = _group_rules(cloud, call)
    direction = call.query.get("direction")
    shown = [rule for rule in rules if direction in (None, "", rule["direction"])]
    # A group holds at most 120 rules (OCI's limit), so the list is one page.
    return Reply(shown)


def _add_rules(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        group, rules = _group_rules(cloud, call)
        added = []
        for rule in call.body().get("securityRules") or []:
            side = {"INGRESS": "source", "EGRESS": "destination"}.get(rule.get("direction"))
            if side is None:
                raise invalid("direction must be INGRESS or EGRESS")
            full = checked_rule(rule, side)
            added.append({**full, "id": new_ocid("rule")[-6:].upper(), "isValid": True, "timeCreated": timestamp()})
        rules.extend(added)
        cloud.store.save(group)
    return Reply({"securityRules": added})


def _update_rules(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        group, rules = _group_rules(cloud, call)
        changed = []
        for update in call.body().get("securityRules") or []:
            matches = [rule for rule in rules if rule["id"] == update.get("id")]
            if not matches:
                raise invalid(f"Security rule {update.get('id')} does not exist in {group.id}")
            matches[0].update(update)
            changed.append(matches[0])
        cloud.store.save(group)
    return Reply({"securityRules": changed})


def _remove_rules(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        group, rules = _group_rules(cloud, call)
        ids = call.body().get("securityRuleIds") or []
        unknown = [ocid for ocid in ids if ocid not in {rule["id"] for rule in rules}]
        if unknown:
            raise invalid(f"Security rules {', '.join(unknown)} do not exist in {group.id}")
        group.hidden["rules"] = [rule for rule in rules if rule["id"] not in ids]
        cloud.store.save(group)
    return Reply({})


def _group_vnics(cloud: CloudState, call: Call) -> Reply:
    group = cloud.live("networksecuritygroup", call.path["networkSecurityGroupId"])
    vnics = [vnic for vnic in cloud.store.find("vnic") if group.id in (vnic.body.get("nsgIds") or [])]
    return page(vnics, call, view=_membership)


def _membership(vnic: Resource) -> Json:
    return {"vnicId": vnic.id, "resourceId": vnic.hidden["instance"], "timeAssociated": vnic.body["timeCreated"]}


def _all_services() -> list[Json]:
    return [
        {"id": _service_id(key), "name": name, "description": name, "cidrBlock": block} for key, block, name in SERVICES
    ]


def _get_service(_cloud: CloudState, call: Call) -> Reply:
    for service in _all_services():
        if service["id"] == call.path["serviceId"]:
            return Reply(service)
    raise not_found("service", call.path["serviceId"])


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Rules of network security groups, and services."""
    group = f"{CORE}/networkSecurityGroups/{{networkSecurityGroupId}}"
    rules = "NetworkSecurityGroupSecurityRules"
    return [
        ApiRoute("GET", f"{group}/securityRules", f"List{rules}", partial(_list_rules, cloud)),
        ApiRoute("POST", f"{group}/actions/addSecurityRules", f"Add{rules}", partial(_add_rules, cloud)),
        ApiRoute("POST", f"{group}/actions/updateSecurityRules", f"Update{rules}", partial(_update_rules, cloud)),
        ApiRoute("POST", f"{group}/actions/removeSecurityRules", f"Remove{rules}", partial(_remove_rules, cloud)),
        ApiRoute("GET", f"{group}/vnics", "ListNetworkSecurityGroupVnics", partial(_group_vnics, cloud)),
        ApiRoute("GET", f"{CORE}/services", "ListServices", lambda call: Reply(_all_services())),
        ApiRoute("GET", f"{CORE}/services/{{serviceId}}", "GetService", partial(_get_service, cloud)),
    ]
