"""The Limits service: limits, how much of them is used, and the quotas of the tenancy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from gpucluster.localcloud.compute import service_limits
from gpucluster.localcloud.compute.service_limits import ServiceLimit
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.region import check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import LIMITS, QUOTAS, ApiError, ApiRoute, Call, Reply, invalid, not_found, page

_QUOTA_ID = "ocid1.quota.local..limitsjson"


def _compartment(cloud: CloudState, call: Call) -> str:
    return cloud.compartment(call.need("compartmentId"), in_body=False)


def _root(cloud: CloudState, call: Call) -> None:
    if _compartment(cloud, call) != cloud.identity.tenancy:
        raise invalid("compartmentId must be the root compartment")


def _rows(bodies: list[Json]) -> list[Resource]:
    return [Resource(str(number), "limit", body, seq=number) for number, body in enumerate(bodies, start=1)]


def _services(cloud: CloudState, call: Call) -> Reply:
    _root(cloud, call)
    bodies = [{"name": name, "description": text} for name, text in service_limits.SERVICES.items()]
    return page(_rows(bodies), call)


def _of_query(call: Call) -> list[ServiceLimit]:
    service, name = call.query.get("serviceName"), call.query.get("name")
    return [
        limit
        for limit in service_limits.all_limits().values()
        if service in (None, "", limit.service) and name in (None, "", limit.name)
    ]


def _scope(limit: ServiceLimit) -> str:
    return "AD" if limit.by_domain else "REGION"


def _definitions(cloud: CloudState, call: Call) -> Reply:
    _root(cloud, call)
    bodies = [
        {
            "name": limit.name,
            "serviceName": limit.service,
            "description": limit.description,
            "scopeType": _scope(limit),
            "areQuotasSupported": True,
            "isResourceAvailabilitySupported": True,
            "isDeprecated": False,
            "isEligibleForLimitIncrease": True,
            "isDynamic": False,
        }
        for limit in _of_query(call)
    ]
    return page(_rows(bodies), call)


def _values(cloud: CloudState, call: Call) -> Reply:
    _root(cloud, call)
    if call.need("serviceName") not in service_limits.SERVICES:
        raise not_found("service", call.query["serviceName"])
    scope, domain = call.query.get("scopeType"), call.query.get("availabilityDomain")
    bodies = [
        {
            "name": limit.name,
            "scopeType": _scope(limit),
            "availabilityDomain": where or None,
            "value": service_limits.value(cloud, limit, where),
        }
        for limit in _of_query(call)
        for where in limit.domains
        if scope in (None, "", _scope(limit)) and domain in (None, "", where)
    ]
    return page(_rows(bodies), call)


def _availability(cloud: CloudState, call: Call) -> Reply:
    _compartment(cloud, call)
    limit = service_limits.all_limits().get(call.path["limitName"])
    if limit is None or limit.service != call.path["serviceName"]:
        raise not_found("limit", f"{call.path['serviceName']} {call.path['limitName']}")
    domain = call.query.get("availabilityDomain", "")
    if limit.by_domain:
        check_domain({"availabilityDomain": domain or None})
    elif domain:
        raise invalid(f"The limit {limit.name} has no availability domain")
    used = limit.used(cloud, domain)
    quota = service_limits.quota(cloud, limit, domain)
    most = min(service_limits.value(cloud, limit, domain), service_limits.LARGE if quota is None else quota)
    return Reply(
        {
            "used": math.ceil(used),
            "available": max(0, math.floor(most - used)),
            "fractionalUsage": used,
            "fractionalAvailability": max(0.0, most - used),
            "effectiveQuotaValue": quota,
        }
    )


def _statements(quotas: Mapping[str, object]) -> list[str]:
    statements = []
    for name, setting in quotas.items():
        places = setting.items() if isinstance(setting, Mapping) else [("", setting)]
        for domain, value in places:
            where = f" where request.ad = '{domain}'" if domain else ""
            statements.append(
                f"Set {service_limits.all_limits()[name].service} quota {name} to {value} in tenancy{where}"
            )
    return statements


def _quota(cloud: CloudState) -> Json | None:
    quotas = service_limits.quotas(cloud)
    if not quotas:
        return None
    return {
        "id": _QUOTA_ID,
        "compartmentId": cloud.identity.tenancy,
        "name": "limits-json",
        "description": "The quotas of limits.json",
        "lifecycleState": LifecycleState.ACTIVE,
        "timeCreated": "2025-01-01T00:00:00.000Z",
        "locks": [],
        "freeformTags": {},
        "definedTags": {},
        "statements": _statements(quotas),
    }


def _list_quotas(cloud: CloudState, call: Call) -> Reply:
    _compartment(cloud, call)
    quota = _quota(cloud)
    summaries = [{name: value for name, value in quota.items() if name != "statements"}] if quota else []
    return page(_rows(summaries), call)


def _get_quota(cloud: CloudState, call: Call) -> Reply:
    quota = _quota(cloud)
    if quota is None or call.path["quotaId"] != quota["id"]:
        raise ApiError(404, "NotAuthorizedOrNotFound", f"There is no quota {call.path['quotaId']}")
    return Reply(quota)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Limits and quotas; all are read here and written in limits.json."""
    available = f"{LIMITS}/services/{{serviceName}}/limits/{{limitName}}/resourceAvailability"
    return [
        ApiRoute("GET", f"{LIMITS}/services", "ListLimitServices", partial(_services, cloud)),
        ApiRoute("GET", f"{LIMITS}/limitDefinitions", "ListLimitDefinitions", partial(_definitions, cloud)),
        ApiRoute("GET", f"{LIMITS}/limitValues", "ListLimitValues", partial(_values, cloud)),
        ApiRoute("GET", available, "GetResourceAvailability", partial(_availability, cloud)),
        ApiRoute("GET", f"{QUOTAS}/quotas", "ListQuotas", partial(_list_quotas, cloud)),
        ApiRoute("GET", f"{QUOTAS}/quotas/{{quotaId}}", "GetQuota", partial(_get_quota, cloud)),
    ]
